"""What is measured of iterations, and of the machines they run on."""
