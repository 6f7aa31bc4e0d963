#include "engine/prompt_pace.h"

#include "base/ints.h"

enum { ROWS_MIN = 4, ROWS_MAX = 1 << 20 };

/* What a step with a prompt takes beyond one without, as part of the latter. A gap of twice the usual one is the bar;
 * the rest is for steps that take longer than those before. */
static const double extra = 0.6;
/* The same for each further prompt that waits, over the sequences that decode. */
static const double extra_of_a_crowd = 4;
/* A time far from those before is rather an accident of the machine: estimates change by this factor at most. */
static const double trust = 1.5;

/* Half a row for each sequence: where time grows with rows, half a step more. */
static int64_t first_rows(int64_t n_decoding) { return nmlp_max(ROWS_MIN, n_decoding / 2); }

int64_t nmlp_prompt_pace_rows(const nmlp_prompt_pace *pace, int64_t n_decoding, int64_t n_prompts) {
    if (n_decoding == 0 || pace->decode_s == 0) return INT64_MAX;
    double crowd = extra_of_a_crowd * (double)(n_prompts - 1) / (double)n_decoding, share = extra + crowd;
    if (pace->row_s == 0) return (int64_t)((double)first_rows(n_decoding) * share / extra);
    double rows = share * pace->decode_s / pace->row_s;
    return rows > ROWS_MAX ? ROWS_MAX : nmlp_max(ROWS_MIN, (int64_t)rows);
}

static double nearer(double estimate, double seen) {
    return seen > estimate * trust ? estimate * trust : seen < estimate / trust ? estimate / trust : seen;
}

void nmlp_prompt_pace_note(nmlp_prompt_pace *pace, int64_t n_decoding, int64_t n_prompt_rows, double seconds) {
    if (n_decoding == 0) return;
    if (n_prompt_rows == 0) { /* many sequences set the time, and are forgotten slowly when there are fewer */
        double seen = pace->decode_s == 0 ? seconds : nearer(pace->decode_s, seconds);
        double rate = pace->decode_s == 0 ? 1 : seen > pace->decode_s ? 0.2 : 0.02;
        pace->decode_s += rate * (seen - pace->decode_s);
    } else if (pace->decode_s > 0) {
        double seen = (seconds - pace->decode_s) / (double)n_prompt_rows;
        double estimate = pace->row_s > 0 ? pace->row_s : extra * pace->decode_s / (double)first_rows(n_decoding);
        double least = extra * pace->decode_s / (double)(4 * n_prompt_rows); /* few rows say little about many */
        if (seen < least) seen = least < estimate ? least : estimate;
        pace->row_s = nearer(estimate, seen);
    }
}
