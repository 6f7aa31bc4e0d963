/* The page at "/", from src/server/page/ (cmake/chat_page.cmake). */
#ifndef NMLP_SERVER_CHAT_PAGE_H
#define NMLP_SERVER_CHAT_PAGE_H

#include <stddef.h>

extern const char nmlp_chat_page[]; /* HTML, NUL-ended */
extern const size_t nmlp_chat_page_bytes;
extern const char nmlp_chat_page_policy[]; /* its Content-Security-Policy */

#endif
