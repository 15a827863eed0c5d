"""Every key under which something is kept in the user attributes of studies and trials.

The texts are part of the format of a study: changing one makes older studies unreadable.
"""

# Of a study.
RECIPE = "taylorglo:recipe"
"""The recipe, frozen by the first worker."""

FIRST_TRIAL = "taylorglo:first_trial"
"""Number of the first trial that counts: those before it came to nothing under another recipe."""

N_CLASSES = "taylorglo:n_classes"
"""Number of classes of the data."""

OPTIMISER = "taylorglo:optimiser"
"""Whose optimiser trains: the recipe's or the module's own."""

CROSS_ENTROPY = "taylorglo:cross_entropy"
"""What cross-entropy reached at the candidates' budget, by training seed."""

EVALUATION_LENGTH = "taylorglo:evaluation_length"
"""What a pilot made of ``budget.evaluation: auto``: the length, and why."""

CLASS_WEIGHTS = "taylorglo:class_weights"
"""What ``loss.class_weights: balanced`` came to."""

LOOK_AT = "taylorglo:look_at"
"""Results at which it is worth while for a worker without work to look at the whole study, and how
far the study was when somebody last did."""

LEASE = "taylorglo:lease"
"""Who changes the study now, where the storage has no locks."""

CHOICE = "taylorglo:choice"
"""Which loss is the winner by full trainings, with all that were compared."""

DRAWN = "taylorglo:drawn"
"""Generations that the dashboard's figures show."""

KEPT_LOSS = "taylorglo:kept_loss"
"""Which loss is the study's newest artifact: the number of its trial, or its name."""

# Of a companion study, which holds the trainings for a verdict.
COMPANION_OF = "taylorglo:companion_of"
"""Name of the study that it belongs to."""

VERDICT = "taylorglo:verdict"
"""The newest verdict."""

SWEEP = "taylorglo:sweep:"
"""The newest sweep over a setting, whose name follows."""

# Of a candidate's trial.
GENERATION = "taylorglo:generation"
INDEX = "taylorglo:index"
"""Place of the candidate in its generation."""

TREE = "taylorglo:tree"
"""Of a GLO search: the candidate's tree in prefix form; its coefficients are parameters."""

ATTEMPT = "taylorglo:attempt"
"""How many attempts of the candidate were aborted before this one."""

SLOT = "taylorglo:slot"
"""Of a retry: the slot it is made for."""

RETRY_OF = "taylorglo:retry_of"
"""Of a retry: number of the trial that it repeats."""

STOPPED = "taylorglo:stopped"
"""The candidate fell behind the generation before and was stopped, with a rank."""

DIVERGED = "taylorglo:diverged"
"""How the training diverged."""

# Of a training's trial in a companion study.
TASK = "taylorglo:task"
"""What is trained, and how."""

KEY = "taylorglo:key"
"""Hash of all that the training's result depends on."""

CURVE = "taylorglo:curve"
"""Steps of a training that the test set judges, and the validation metric there."""

ASKED_ANEW = "taylorglo:asked_anew"
"""The training was asked for again after it had been given up: failures before do not count."""

# Of any trial.
WORKER = "taylorglo:worker"
"""Who evaluates the trial: host, process and a token of that very process."""

TAKER = "taylorglo:taker"
"""Who was last about to take the trial, in a storage where that takes several steps."""

ERROR = "taylorglo:error"
"""The exception that ended the trial: its type, its message and the end of its traceback."""

READY = "taylorglo:ready"
"""Of a trial that waits: its own number, if it lies where it was meant to and may be taken."""

RELEASED = "taylorglo:handed_back"
"""The worker gave the trial back unfinished, on purpose."""

LOST = "taylorglo:lost"
"""How the trial was lost with its worker, which is no fault of the candidate's."""

BEAT = "taylorglo:beat"
"""Signs of life so far, in a storage without a clock of its own."""

SUSPECTED = "taylorglo:suspected"
"""Nothing was heard of the trial for long, in a storage without a clock of its own."""
