/* Rotation angles of every position. Frequencies and angles are rounded to f32 exactly where Hugging Face rounds them,
 * so that long contexts give the same tokens. */
#include "engine/rope_table.h"

#include <math.h>

/* Llama 3.1: low frequencies are stretched by `factor`, high ones kept, those between blended. */
static float scale_llama3(const nmlp_rope_config *rope, float freq) {
    const double two_pi = 6.283185307179586;
    double wavelength = two_pi / (double)freq;
    double low_wavelength = rope->original_max_positions / rope->low_freq_factor;
    double high_wavelength = rope->original_max_positions / rope->high_freq_factor;
    if (wavelength < high_wavelength) return freq;
    if (wavelength > low_wavelength) return (float)(freq / rope->factor);
    double smooth = (rope->original_max_positions / wavelength - rope->low_freq_factor) /
                    (rope->high_freq_factor - rope->low_freq_factor);
    return (float)((1 - smooth) * freq / rope->factor + smooth * freq);
}

void nmlp_rope_table(float *table, const nmlp_rope_config *rope, int64_t n_positions, int64_t head_dim) {
    int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        float freq = (float)(1.0 / pow(rope->theta, (double)(2 * i) / (double)head_dim));
        if (rope->kind == NMLP_ROPE_LLAMA3) freq = scale_llama3(rope, freq);
        for (int64_t p = 0; p < n_positions; p++) {
            float angle = (float)p * freq;
            table[p * head_dim + i] = (float)cos((double)angle);
            table[p * head_dim + half + i] = (float)sin((double)angle);
        }
    }
}
