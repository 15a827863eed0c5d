"""Every key of the user attributes of studies and trials; they are the format of a study."""

# Of a study.
RECIPE = "taylorglo:recipe"  # frozen by the first worker
FIRST_TRIAL = "taylorglo:first_trial"  # the first that counts; others belong to another recipe
N_CLASSES = "taylorglo:n_classes"
OPTIMIZER = "taylorglo:optimizer"  # settings of the one that trains; "module": its own
CROSS_ENTROPY = "taylorglo:cross_entropy"  # metric at the candidates' budget, by training seed
CLASS_WEIGHTS = "taylorglo:class_weights"  # those of `loss.class_weights: balanced`
SCALE = "taylorglo:scale"  # where the scale of losses is searched, of `search.scale: auto`
LR_FACTOR = "taylorglo:lr_factor"  # whether a training function's steps follow it
NEWS = "taylorglo:news"  # trials that were added last, and whether all is done; for idle workers
SELECTION = "taylorglo:selection"  # the winner by full trainings, with all finalists
DRAWN = "taylorglo:drawn"  # generations that the dashboard's figures show

# Of an evaluation study, which holds the trainings for a verdict.
EVALUATION_OF = "taylorglo:evaluation_of"  # name of the study that it belongs to
VERDICT = "taylorglo:verdict"  # the newest one
SWEEP = "taylorglo:sweep:"  # the newest sweep over a setting, whose name follows

# Of a candidate's trial.
GENERATION = "taylorglo:generation"
INDEX = "taylorglo:index"  # place in its generation
TREE = "taylorglo:tree"  # of GLO, in prefix form; the coefficients are parameters
ATTEMPT = "taylorglo:attempt"  # number of aborted attempts before this one
STOPPED = "taylorglo:stopped"  # the candidate fell behind the previous generation; its rank
DIVERGED = "taylorglo:diverged"  # how the training diverged

# Of a training's trial in an evaluation study.
TASK = "taylorglo:task"  # what is trained, and how
KEY = "taylorglo:key"  # hash of everything that the training's result depends on
CURVE = "taylorglo:curve"  # steps of a training for the test set, and the validation metric there
ASKED_ANEW = "taylorglo:asked_anew"  # requested again: earlier failures do not count

# Of any trial.
WORKER = "taylorglo:worker"  # the process and its last heartbeat; empty before the first one
SUSPECT = "taylorglo:suspect"  # no heartbeat for the grace period
ERROR = "taylorglo:error"  # the exception: its type, its message and the end of its traceback
RELEASED = "taylorglo:released"  # the worker requeued the trial unfinished, on purpose
STALE = "taylorglo:stale"  # why it failed without its worker, which died or wrote no heartbeat
WITHDRAWN = "taylorglo:withdrawn"  # never evaluated: a duplicate, or no longer needed
