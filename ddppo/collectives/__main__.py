"""`python -m ddppo.collectives [world sizes] [bytes]`: what a sum costs here; see latency.py."""

from ddppo.collectives.latency import main

if __name__ == "__main__":
    main()
