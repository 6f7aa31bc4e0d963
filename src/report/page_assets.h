/* Style and script of a page: src/report/page.css and src/report/page.js, made into C by cmake/text.cmake. */
#ifndef NMLP_REPORT_PAGE_ASSETS_H
#define NMLP_REPORT_PAGE_ASSETS_H

extern const char nmlp_page_style[];
extern const char nmlp_page_script[];

#endif
