"""Making a user's circuit smaller: walks by rules in several processes, at random or by a run's policy.

command: the verbs `optimise` and `replay` of `ddppo-circuit`. workers: the processes. walk: what each does.
policy: who chooses where a run does. rewrites: the file that says how a circuit was found.
"""
