#include <cstdint>
#include <cstring>

float inverse_root(float x) {
    const float half = 0.5f * x;
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = 0x5f3759df - (bits >> 1);
    float guess;
    std::memcpy(&guess, &bits, sizeof guess);
    for (int round = 0; round < 2; ++round) {
        guess *= 1.5f - half * guess * guess;
    }
    return guess;
}
