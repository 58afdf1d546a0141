// The movement of my_project/physics.py, to the same bits: ddppo compiles without contracted multiply-adds.
#include <cstdint>

extern "C" void move(double* state, double push, int64_t parts, double drag) {
  for (int64_t i = 0; i < parts; i++) {
    state[1] += (push - drag * state[1]) / parts;
    state[0] += state[1] / parts;
  }
}
