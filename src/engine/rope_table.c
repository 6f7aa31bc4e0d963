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

/* YaRN: the dimension whose wavelength turns so often within the original length. */
static double yarn_dimension(const nmlp_rope_config *rope, double turns, double dim) {
    const double two_pi = 6.283185307179586;
    return dim * log(rope->original_max_positions / (turns * two_pi)) / (2 * log(rope->theta));
}

/* High frequencies are kept, low ones divided by `factor`, those between blended by their index. */
static float scale_yarn(const nmlp_rope_config *rope, float power, int64_t i, double dim) {
    double low = yarn_dimension(rope, rope->beta_fast, dim);
    double high = yarn_dimension(rope, rope->beta_slow, dim);
    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, dim - 1);
    if (low == high) high += 0.001;
    float ramp = ((float)i - (float)low) / (float)(high - low);
    ramp = fminf(fmaxf(ramp, 0.0f), 1.0f);
    float kept = 1.0f - ramp;
    return 1.0f / ((float)rope->factor * power) * (1.0f - kept) + 1.0f / power * kept;
}

static float frequency(const nmlp_rope_config *rope, int64_t i, int64_t rope_dim, int64_t n_positions) {
    double dim = (double)rope_dim;
    double base = rope->theta;
    if (rope->kind == NMLP_ROPE_DYNAMIC) {
        double length = fmax((double)n_positions, rope->original_max_positions);
        base *= pow(rope->factor * length / rope->original_max_positions - (rope->factor - 1), dim / (dim - 2));
    }
    double exponent = (double)(2 * i) / dim;
    float freq = (float)(1.0 / pow(base, exponent));
    if (rope->kind == NMLP_ROPE_LINEAR) return freq / (float)rope->factor;
    if (rope->kind == NMLP_ROPE_LLAMA3) return scale_llama3(rope, freq);
    if (rope->kind == NMLP_ROPE_YARN) return scale_yarn(rope, (float)pow(base, exponent), i, dim);
    if (rope->kind == NMLP_ROPE_LONGROPE) {
        bool is_long = (double)n_positions > rope->original_max_positions;
        return 1.0f / ((is_long ? rope->long_factor : rope->short_factor)[i] * (float)pow(base, exponent));
    }
    return freq;
}

void nmlp_rope_table_fill(float *table, const nmlp_rope_config *rope, int64_t n_positions, int64_t rope_dim) {
    int64_t half = rope_dim / 2;
    bool scaled = rope->kind == NMLP_ROPE_YARN || rope->kind == NMLP_ROPE_LONGROPE;
    float scale = scaled ? (float)rope->attention_factor : 1.0f;
    for (int64_t i = 0; i < half; i++) {
        float freq = frequency(rope, i, rope_dim, n_positions);
        for (int64_t p = 0; p < n_positions; p++) {
            float angle = (float)p * freq;
            table[p * rope_dim + i] = (float)cos((double)angle) * scale;
            table[p * rope_dim + half + i] = (float)sin((double)angle) * scale;
        }
    }
}

void nmlp_rope_table_grow(float *table, const nmlp_rope_config *rope, int64_t n_positions, int64_t rope_dim) {
    for (int64_t p = 0; p < n_positions; p++) {
        float originals = floorf((float)p / (float)rope->original_max_positions);
        float growth = 1.0f + (float)rope->query_growth * logf(1.0f + originals);
        for (int64_t i = 0; i < rope_dim; i++) table[p * rope_dim + i] *= growth;
    }
}
