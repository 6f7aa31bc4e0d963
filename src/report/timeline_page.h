/* The engines of a kernel as a figure of a page that one can zoom, move and point at. */
#ifndef NMLP_REPORT_TIMELINE_PAGE_H
#define NMLP_REPORT_TIMELINE_PAGE_H

#include "report/page.h"
#include "report/timeline.h"

/* The timeline must hold the first events of the run (`window_only` false); where they end before the run does, the
 * rest is drawn as shades of activity. */
void nmlp_page_timeline(nmlp_page *page, const nmlp_timeline *timeline, const char *title, const char *about,
                        const char *command);

#endif
