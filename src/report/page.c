#include "report/page.h"

#include <string.h>

#include "report/markup.h"
#include "report/page_assets.h"

void nmlp_page_init(nmlp_page *page) {
    *page = (nmlp_page){0};
    nmlp_str_init(&page->cards);
    nmlp_str_init(&page->nav);
    nmlp_str_init(&page->body);
}

void nmlp_page_fini(nmlp_page *page) {
    nmlp_str_fini(&page->cards);
    nmlp_str_fini(&page->nav);
    nmlp_str_fini(&page->body);
}

static void put_element(nmlp_str *out, const char *open, const char *text, const char *close) {
    nmlp_str_puts(out, open);
    nmlp_markup_text(out, text);
    nmlp_str_puts(out, close);
}

void nmlp_page_section_begin(nmlp_page *page, const char *id, const char *title, const char *lead) {
    page->n_sections++;
    put_element(&page->nav, "<a href=\"#", id, "\">");
    put_element(&page->nav, "", title, "</a>\n");
    put_element(&page->body, "<section id=\"", id, "\">\n");
    put_element(&page->body, "<h2>", title, "</h2>\n");
    put_element(&page->body, "<p class=\"lead\">", lead, "</p>\n");
}

void nmlp_page_section_end(nmlp_page *page) { nmlp_str_puts(&page->body, "</section>\n"); }

void nmlp_page_card(nmlp_page *page, const char *value, const char *label, const char *section_id) {
    put_element(&page->cards, "<a class=\"card\" href=\"#", section_id, "\">");
    put_element(&page->cards, "<strong>", value, "</strong>");
    put_element(&page->cards, "<span>", label, "</span></a>\n");
}

void nmlp_page_paragraph(nmlp_page *page, const char *text) { put_element(&page->body, "<p>", text, "</p>\n"); }

void nmlp_page_command(nmlp_page *page, const char *command) {
    nmlp_str *out = &page->body;
    nmlp_str_puts(out, "<div class=\"cmd\"><code><span>");
    for (const char *line = command; *line;) {
        size_t len = strcspn(line, "\n");
        nmlp_markup_bytes(out, line, len);
        line += len;
        if (*line == '\n' && *++line) nmlp_str_puts(out, "</span>\n<span>");
    }
    nmlp_str_puts(out,
                  "</span></code><button type=\"button\" class=\"copy\" aria-label=\"Copy\">Copy</button></div>\n");
}

void nmlp_page_panel_begin(nmlp_page *page) { nmlp_str_puts(&page->body, "<div class=\"panel\">\n"); }

void nmlp_page_panel_end(nmlp_page *page) { nmlp_str_puts(&page->body, "</div>\n"); }

void nmlp_page_grid_begin(nmlp_page *page) { nmlp_str_puts(&page->body, "<div class=\"grid\">\n"); }

void nmlp_page_grid_end(nmlp_page *page) { nmlp_str_puts(&page->body, "</div>\n"); }

void nmlp_page_chart(nmlp_page *page, const nmlp_plot *plot, const char *command) {
    page->n_charts++;
    nmlp_str_puts(&page->body, "<figure>\n");
    nmlp_plot_write(plot, &page->body);
    if (command) nmlp_page_command(page, command);
    nmlp_str_puts(&page->body, "</figure>\n");
}

void nmlp_page_table_begin(nmlp_page *page, const char *caption, const char *const *heads, size_t n_heads) {
    put_element(&page->body, "<div class=\"scroll\"><table><caption>", caption, "</caption><thead><tr>");
    for (size_t i = 0; i < n_heads; i++) put_element(&page->body, "<th scope=\"col\">", heads[i], "</th>");
    nmlp_str_puts(&page->body, "</tr></thead><tbody>\n");
}

void nmlp_page_table_row(nmlp_page *page, const char *const *cells, size_t n_cells, size_t n_text) {
    nmlp_str_puts(&page->body, "<tr>");
    for (size_t i = 0; i < n_cells; i++)
        put_element(&page->body, i < n_text ? "<td class=\"word\">" : "<td>", cells[i], "</td>");
    nmlp_str_puts(&page->body, "</tr>\n");
}

void nmlp_page_table_end(nmlp_page *page) { nmlp_str_puts(&page->body, "</tbody></table></div>\n"); }

static void put_head(const nmlp_page_head *head, nmlp_str *out) {
    nmlp_str_puts(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                       "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                       "<meta name=\"color-scheme\" content=\"light dark\">\n");
    put_element(out, "<title>", head->title, "</title>\n");
    nmlp_str_printf(out, "<link rel=\"icon\" href=\"data:,\">\n<style>\n%s</style>\n</head>\n<body>\n",
                    nmlp_page_style);
    put_element(out, "<header>\n<div><h1>", head->title, "</h1>\n");
    put_element(out, "<p>", head->subtitle, "</p></div>\n");
    nmlp_str_puts(
        out,
        "<button type=\"button\" id=\"theme\" aria-label=\"Switch between light and dark\">Dark</button>\n</header>\n");
}

void nmlp_page_write(const nmlp_page *page, const nmlp_page_head *head, nmlp_str *out) {
    put_head(head, out);
    nmlp_str_printf(out, "<nav aria-label=\"Sections\">\n%s</nav>\n<main>\n", nmlp_str_text(&page->nav));
    if (page->cards.len) nmlp_str_printf(out, "<div class=\"cards\">\n%s</div>\n", nmlp_str_text(&page->cards));
    nmlp_str_puts(out, nmlp_str_text(&page->body));
    nmlp_str_puts(out, "</main>\n<footer>\n");
    for (size_t i = 0; i < head->n_footer; i++) put_element(out, "<p>", head->footer[i], "</p>\n");
    nmlp_str_printf(
        out, "</footer>\n<div id=\"tip\" role=\"tooltip\" hidden></div>\n<script>\n%s</script>\n</body>\n</html>\n",
        nmlp_page_script);
    if (page->body.failed || page->nav.failed || page->cards.failed) out->failed = true;
}
