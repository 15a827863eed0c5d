"""The recipe's section about the search: TaylorGLO's, GLO's, and where one starts."""

from typing import Annotated, Literal

from pydantic import Field, Strict, StrictStr

from optuna_taylorglo.recipes.requirements import Requirement
from optuna_taylorglo.recipes.section import (
    MOST_CANDIDATES,
    MOST_GENERATIONS,
    MOST_TRAININGS,
    Section,
)
from optuna_taylorglo.validation import Allowed, FromList, Number, Problem, WholeNumber


class CoefficientSettings(Section):
    """CMA-ES over the coefficients of the best tree, one for each of its nodes, starting at 1."""

    population: WholeNumber = Field(default=32, ge=2, le=MOST_CANDIDATES)
    """Candidates per generation."""

    generations: WholeNumber = Field(default=35, ge=0, le=MOST_GENERATIONS)
    """Generations; 0 leaves this stage out."""

    sigma: Number = Field(default=0.5, gt=0, lt=100)
    """First step size, in units of a coefficient."""


class GLOSettings(Section):
    """Genetic programming over trees, and after it the coefficients of the best one."""

    population: WholeNumber = Field(default=100, ge=2, le=MOST_CANDIDATES)
    """Trees per generation."""

    generations: WholeNumber = Field(default=100, ge=1, le=MOST_GENERATIONS)
    """Generations of trees."""

    elite: WholeNumber = Field(default=6, ge=1)
    """Best trees, different as functions, that go into the next generation as they are; below
    `population`."""

    tournament: WholeNumber = Field(default=4, ge=1, le=MOST_CANDIDATES)
    """Trees drawn at random of which the best becomes a parent."""

    crossover: Number = Field(default=0.7, ge=0, le=1)
    """Share of children that get a part of a second parent; the others a part that is new."""

    max_depth: WholeNumber = Field(default=6, ge=1, le=17)
    """Greatest depth of a tree; Baikal's is 2."""

    coefficients: CoefficientSettings = CoefficientSettings()

    def _problems_together(self) -> list[Problem]:
        problems = super()._problems_together()
        if self.elite >= self.population:
            sentence = f"{self.elite} is not allowed, must be below population, {self.population}"
            problems.append(Problem("elite", sentence))
        return problems


class StartSettings(Section):
    """Where the search starts in place of θ = 0: at the expansion of a loss, or at given θ."""

    loss: (
        Annotated[
            StrictStr,
            Field(min_length=1),
            Allowed("cross_entropy, baikal, baikal_cma or the path of a loss file"),
        ]
        | None
    ) = None
    """Which loss, by name or by its file; a study keeps the θ that it came to, not the path."""

    at: Annotated[
        tuple[Number, ...],
        Strict(),
        FromList,
        Field(min_length=2, max_length=2),
        Allowed("a list of two numbers, x and y"),
    ] = (0.0, 0.5)
    """Point of expansion: target x and output y."""

    theta: Annotated[tuple[Number, ...], Strict(), FromList] | None = None
    """θ itself, as many as the recipe's losses have; `loss` is then a name and no more."""

    def _problems_together(self) -> list[Problem]:
        problems = super()._problems_together()
        if self.loss is None and self.theta is None:
            problems.append(Problem("loss", "missing, must be given unless theta is"))
        return problems


_TAYLOR_ONLY = ("population", "sigma", "generations", "space", "filter", "scale", "overlap")


class SearchSettings(Section):
    """Which losses are tried, and in what order."""

    newer = ("overlap", "method", "glo", "start")
    requirements = (
        Requirement(
            field="method",
            values=("glo",),
            needs={"glo": None},
            because="its numbers stand there; write glo: {{}} for the paper's",
        ),
        Requirement(
            field="glo",
            values=None,
            needs={"method": ("glo",)},
            because="leave it out, or set method: glo",
        ),
        *(
            Requirement(
                field=name,
                values=None,
                needs={"method": ("taylor",)},
                because=f"GLO has no {name} here; what it has stands in search.glo",
            )
            for name in (*_TAYLOR_ONLY, "start")
        ),
    )

    population: WholeNumber = Field(default=28, ge=2, le=MOST_CANDIDATES)
    """λ, candidates per generation."""

    sigma: Number = Field(default=1.2, gt=0, lt=100)
    """First step size, in units of θ."""

    generations: WholeNumber = Field(default=60, ge=1, le=MOST_GENERATIONS)
    """Generations of a complete search."""

    seed: WholeNumber = Field(default=0, ge=0, le=2**32 - 1)
    """Decides every candidate and every training's seed."""

    space: Literal["theta", "canonical"] = "theta"
    """theta: all parameters; canonical: the four that matter at order 3 over (x, y)."""

    filter: Literal["none", "trainable", "steady"] = "none"
    """trainable: draw again until the loss can start learning; steady: and until it does not draw
    all predictions to one class and, with a base, starts at a pace."""

    scale: Literal["free", "normalized"] = "free"
    """normalized: every candidate's first gradient is as long as cross-entropy's; with a base s
    stays 0."""

    repeats: WholeNumber = Field(default=1, ge=1, le=MOST_TRAININGS)
    """Trainings averaged for one fitness."""

    seed_policy: Literal["independent", "common"] = "independent"
    """independent: each candidate its own training seeds; common: a generation shares them."""

    overlap: WholeNumber = Field(default=0, ge=0)
    """First candidates of each generation that are drawn without the results of the generation
    before it, so that workers begin them while its last ones still train; below `population`."""

    start: StartSettings | None = None
    """Left out: θ = 0."""

    method: Literal["taylor", "glo"] = "taylor"
    """taylor: CMA-ES over the parameters of a polynomial; glo: genetic programming over trees, then
    CMA-ES over the coefficients of the best one."""

    glo: GLOSettings | None = None
    """With `method: glo`."""

    @property
    def n_generations(self) -> int:
        """Generations of the whole search, of both stages of GLO."""
        if self.glo is None:
            return self.generations
        return self.glo.generations + self.glo.coefficients.generations

    @property
    def n_candidates(self) -> int:
        """Candidates of the whole search, those included that GLO need not evaluate again."""
        if self.glo is None:
            return self.population * self.generations
        stages = (self.glo, self.glo.coefficients)
        return sum(stage.population * stage.generations for stage in stages)

    def _unwritten(self) -> list[str]:
        return super()._unwritten() + (list(_TAYLOR_ONLY) if self.method == "glo" else [])

    def _problems_together(self) -> list[Problem]:
        problems = super()._problems_together()
        if self.overlap >= self.population:
            sentence = (
                f"{self.overlap} is not allowed, must be below search.population, "
                f"{self.population}: half of it is a good choice"
            )
            problems.append(Problem("overlap", sentence))
        return problems
