"""From a command line to running ranks: arguments, checks, one run or a sweep, local ranks or torchrun's."""
