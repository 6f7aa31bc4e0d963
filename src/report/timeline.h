/* Drawing what the engines did: Chrome/Perfetto trace JSON, or a self-contained SVG with the whole run as shades of
 * activity and a window of it instruction by instruction. */
#ifndef NMLP_REPORT_TIMELINE_H
#define NMLP_REPORT_TIMELINE_H

#include "base/str.h"
#include "trainium/sim/time.h"
#include "report/page.h"

enum { NMLP_TIMELINE_SHADES = 600 };

typedef struct nmlp_timeline {
    double total_us, window_start_us, window_end_us;
    size_t max_events;
    bool window_only; /* keep only events inside the window (SVG); else the first max_events (JSON) */
    nmlp_time_event *events;
    size_t n_events, cap_events, n_dropped;
    double shade_us[NMLP_N_ENGINES][NMLP_TIMELINE_SHADES];
    bool failed; /* out of memory */
} nmlp_timeline;

/* For a run of `total_us` known from an earlier pass. */
void nmlp_timeline_init(nmlp_timeline *t, double total_us, bool window_only);
void nmlp_timeline_fini(nmlp_timeline *t);
/* An on_event of nmlp_time_options; ctx is the timeline. */
void nmlp_timeline_add(void *timeline, const nmlp_time_event *event);
void nmlp_timeline_write_json(const nmlp_timeline *t, const char *title, nmlp_str *out);
void nmlp_timeline_write_svg(const nmlp_timeline *t, const char *title, nmlp_str *out);

/* The engines of a kernel as a figure of a page that one can zoom, move and point at. The timeline must hold the first
 * events of the run (`window_only` false); where they end before the run does, the rest is drawn as shades of activity.
 */
void nmlp_page_timeline(nmlp_page *page, const nmlp_timeline *timeline, const char *title, const char *about,
                        const char *command);

#endif
