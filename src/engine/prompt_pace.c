#include "engine/prompt_pace.h"

#include "base/ints.h"

enum { ROWS_MIN = 4, ROWS_MAX = 1 << 20 };

/* What a step with a prompt takes beyond one without, as part of the latter. A gap of twice the usual one is the bar;
 * the rest is for steps that take longer than those before. */
static const double extra = 0.5;
/* The same for each further prompt that waits, over the sequences that decode. */
static const double extra_of_a_crowd = 4;
/* A time far from those before is rather an accident of the machine: estimates of rows change by this factor at most.
 */
static const double trust = 1.5;

/* Half a row for each sequence: where time grows with rows, half a step more. */
static int64_t first_rows(int64_t n_decoding) { return nmlp_max(ROWS_MIN, n_decoding / 2); }

static int size_of(int64_t n_decoding) {
    int size = 0;
    while (size + 1 < NMLP_PACE_SIZES && (int64_t)1 << size < n_decoding) size++;
    return size;
}

/* The time of the nearest number of sequences that has been seen. */
static double decode_seconds(const nmlp_prompt_pace *pace, int64_t n_decoding) {
    int size = size_of(n_decoding);
    for (int away = 0; away < NMLP_PACE_SIZES; away++) {
        if (size + away < NMLP_PACE_SIZES && pace->decode_s[size + away] > 0) return pace->decode_s[size + away];
        if (size - away >= 0 && pace->decode_s[size - away] > 0) return pace->decode_s[size - away];
    }
    return 0;
}

int64_t nmlp_prompt_pace_rows(const nmlp_prompt_pace *pace, int64_t n_decoding, int64_t n_prompts) {
    double decode_s = decode_seconds(pace, n_decoding);
    if (n_decoding == 0 || decode_s == 0) return INT64_MAX;
    double crowd = extra_of_a_crowd * (double)(n_prompts - 1) / (double)n_decoding, share = extra + crowd;
    double row_s = n_prompts > 1 && pace->crowd_row_s > 0 ? pace->crowd_row_s : pace->row_s;
    if (row_s == 0) return (int64_t)((double)first_rows(n_decoding) * share / extra);
    double rows = share * decode_s / row_s;
    return rows > ROWS_MAX ? ROWS_MAX : nmlp_max(ROWS_MIN, (int64_t)rows);
}

static double between(double value, double low, double high) { return value < low ? low : value > high ? high : value; }

/* Most steps take the same time and a few much longer: what is far above moves the estimate little. */
static void note_decode(double *estimate, double seconds) {
    if (*estimate == 0) *estimate = seconds;
    *estimate += 0.2 * between(seconds - *estimate, -0.5 * *estimate, 0.2 * *estimate);
}

void nmlp_prompt_pace_note(nmlp_prompt_pace *pace, int64_t n_decoding, int64_t n_prompts, int64_t n_prompt_rows,
                           double seconds) {
    double *row_s = n_prompts > 1 ? &pace->crowd_row_s : &pace->row_s, decode_s = decode_seconds(pace, n_decoding);
    if (n_decoding == 0) return;
    if (n_prompt_rows == 0) {
        note_decode(&pace->decode_s[size_of(n_decoding)], seconds);
    } else if (decode_s > 0) {
        double seen = (seconds - decode_s) / (double)n_prompt_rows;
        double estimate = *row_s > 0 ? *row_s : extra * decode_s / (double)first_rows(n_decoding);
        double least = extra * decode_s / (double)(4 * n_prompt_rows); /* few rows say little about many */
        if (seen < least) seen = least < estimate ? least : estimate;
        *row_s = between(seen, estimate / trust, estimate * trust);
    }
}
