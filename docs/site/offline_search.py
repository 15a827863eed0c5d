"""Search in pages opened from files, where browsers do not start a worker from a file.

The text of Material's worker is put into a script of this site, which starts it from memory.
"""

from __future__ import annotations

import json
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

_SCRIPT = """\
if (location.protocol === "file:") {
  const source = %s
  const FromFile = Worker
  window.Worker = function () {
    return new FromFile(URL.createObjectURL(new Blob([source], {type: "text/javascript"})))
  }
}
"""


def on_post_build(config: MkDocsConfig) -> None:
    """Write the script."""
    site = Path(config.site_dir)
    (worker,) = site.glob("assets/javascripts/workers/search.*.js")
    script = _SCRIPT % json.dumps(worker.read_text(encoding="utf-8"))
    (site / config.extra["polyfills"][0]).write_text(script, encoding="utf-8")
