"""scikit-learn's handwritten digits."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from lightning_modules.data.image_data import ImageData, Part, UInt8Array
from lightning_modules.data.splits import Labels, split

N_TEST = 360


class Digits(ImageData):
    """scikit-learn's 8×8 digits: 1,077 / 360 / 360 images, every class in proportion."""

    dataset = "digits"
    input_shape = (1, 8, 8)
    n_train, n_val = 1_437, 360
    raw_files = "none, they come with scikit-learn"
    max_value = 16
    stratified = True

    def read(self, part: Part) -> tuple[UInt8Array, Labels]:
        """Scikit-learn's file; a fixed, stratified fifth is the test part."""
        package = find_spec("sklearn")
        assert package is not None
        assert package.origin is not None
        # Read without importing scikit-learn, which takes a second in each worker.
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        table = np.loadtxt(file, delimiter=",").astype(np.uint8)
        images, labels = table[:, :64].reshape(-1, 8, 8), table[:, 64]
        train, test = split(labels, N_TEST, stratified=True)
        chosen = train if part == "train" else test
        return images[chosen], labels[chosen]
