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

OPTIMIZER = "taylorglo:optimizer"
"""Whose optimizer trains: the recipe's or the module's own."""

CROSS_ENTROPY = "taylorglo:cross_entropy"
"""What cross-entropy reached at the candidates' budget, by training seed."""

CLASS_WEIGHTS = "taylorglo:class_weights"
"""What ``loss.class_weights: balanced`` came to."""

NEWS = "taylorglo:news"
"""Ids of the trials that were added last, and whether all is done; idle workers poll it."""

SELECTION = "taylorglo:selection"
"""Which loss is the winner by full trainings, with all that were compared."""

DRAWN = "taylorglo:drawn"
"""Generations that the dashboard's figures show."""

SAVED_LOSS = "taylorglo:saved_loss"
"""Which loss is the study's newest artifact: the number of its trial, or its name."""

# Of a evaluation study, which holds the trainings for a verdict.
EVALUATION_OF = "taylorglo:evaluation_of"
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

STOPPED = "taylorglo:stopped"
"""The candidate fell behind the generation before and was stopped, with a rank."""

DIVERGED = "taylorglo:diverged"
"""How the training diverged."""

# Of a training's trial in a evaluation study.
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
"""The process that evaluates the trial, and its last heartbeat; empty before the first one."""

SUSPECT = "taylorglo:suspect"
"""The trial had no heartbeat for the grace period."""

ERROR = "taylorglo:error"
"""The exception that ended the trial: its type, its message and the end of its traceback."""

RELEASED = "taylorglo:released"
"""The worker gave the trial back unfinished, on purpose."""

STALE = "taylorglo:stale"
"""Why the trial failed without its worker: it died, or wrote no heartbeat."""

WITHDRAWN = "taylorglo:withdrawn"
"""The trial was never evaluated: a duplicate, or one that is not needed any more."""
