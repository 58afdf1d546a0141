"""`python -m ddppo.domains.circuits <verb>`, which `ddppo-circuit <verb>` is too."""

from ddppo.domains.circuits.commands import main

if __name__ == "__main__":
    main()
