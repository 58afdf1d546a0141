"""Heads of policies, loss terms and metrics of one's own that cannot be: command lines with what is said of them."""

LINES = {
    "model.squash=tahn": "must be one of none, tanh (did you mean tanh?)",
    "model.squash=tanh": "model.squash=tanh has no effect on actions that are discrete",
    "model.log_std=state": "model.log_std=state has no effect on actions that are discrete",
    "env=pendulum model.log_std=state model.log_std_init=3": "which is cut to [-20, 2]: use a number inside",
    "env=circuit model.squash=tanh": "model.squash=tanh has no effect with model.name=gnn",
    "distributed=device env=pendulum model.squash=tanh": "model.squash=tanh squashes its actions",
    "ppo.losses={still:terms}": "needs the import path of a function and its coefficient, as ppo.losses={still: {term:",
    "ppo.losses={still:{term:terms,coef:1}}": "must be an import path like my_pkg.losses:still",
    "ppo.losses={still:{term:no_such:still,coef:1}}": "ppo.losses.still.term=no_such:still: cannot be imported",
    "ppo.losses={still:{term:math:pi,coef:1}}": "is a float: it must be a function",
    "ppo.losses={still:{term:math:sqrt,coef:much}}": "ppo.losses.still.coef=much: must be a finite number",
    "ppo.losses={still:{term:math:sqrt,coef:1}} compile=on": "compile=on with ppo.losses: terms of your own",
    "env=pendulum ppo.losses={x:{term:tests.distributed.own_parts:push,coef:1}} distributed=device": "torch computes",
    "log.metrics=[told]": "log.metrics=[told]: must be an import path like my_pkg.metrics:pushed_left",
    "log.metrics=[math:pi]": "log.metrics=[math:pi]: is a float: it must be a function, or a class of such",
    "log.metrics=[no_such:told]": "log.metrics=[no_such:told]: cannot be imported: ModuleNotFoundError",
    "log.metrics=[math:sqrt,math:sqrt]": "log.metrics names math:sqrt twice: leave one out",
}
