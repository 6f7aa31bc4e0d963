# The server's page: one file of HTML, style and script, and the policy that lets a browser run just these two.
set(NMLP_CHAT_PAGE_DIR ${CMAKE_SOURCE_DIR}/src/server/page)

# Base64 of the SHA-256 of a text, as a Content-Security-Policy names it.
function(nmlp_policy_hash out text)
  set(letters "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  string(SHA256 hex "${text}")
  set(result "")
  foreach(at RANGE 0 60 6) # 3 bytes are 4 letters; 32 bytes end with 2, which are 3 letters and padding
    string(SUBSTRING "${hex}00" ${at} 6 group)
    foreach(shift 18 12 6 0)
      math(EXPR letter "(0x${group} >> ${shift}) & 63")
      string(SUBSTRING ${letters} ${letter} 1 letter)
      string(APPEND result ${letter})
    endforeach()
  endforeach()
  string(SUBSTRING ${result} 0 43 result)
  set(${out} "sha256-${result}=" PARENT_SCOPE)
endfunction()

set(NMLP_CHAT_SCRIPT "")
foreach(part markdown.js requests.js tokens.js chat.js)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${NMLP_CHAT_PAGE_DIR}/${part})
  file(READ ${NMLP_CHAT_PAGE_DIR}/${part} text)
  string(APPEND NMLP_CHAT_SCRIPT "${text}")
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${NMLP_CHAT_PAGE_DIR}/page.css ${NMLP_CHAT_PAGE_DIR}/page.html)
file(READ ${NMLP_CHAT_PAGE_DIR}/page.css NMLP_CHAT_STYLE)
file(READ ${NMLP_CHAT_PAGE_DIR}/page.html NMLP_CHAT_HTML)
nmlp_policy_hash(NMLP_CHAT_SCRIPT_HASH "${NMLP_CHAT_SCRIPT}")
nmlp_policy_hash(NMLP_CHAT_STYLE_HASH "${NMLP_CHAT_STYLE}")
string(REPLACE "%STYLE%" "${NMLP_CHAT_STYLE}" NMLP_CHAT_HTML "${NMLP_CHAT_HTML}")
string(REPLACE "%SCRIPT%" "${NMLP_CHAT_SCRIPT}" NMLP_CHAT_HTML "${NMLP_CHAT_HTML}")
file(WRITE ${CMAKE_BINARY_DIR}/generated/chat_page.html "${NMLP_CHAT_HTML}")
nmlp_text_literal(NMLP_CHAT_LITERAL ${CMAKE_BINARY_DIR}/generated/chat_page.html)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/chat_page.c @ONLY CONTENT
"#include \"server/chat_page.h\"

const char nmlp_chat_page_policy[] =
    \"default-src 'none'; script-src '@NMLP_CHAT_SCRIPT_HASH@'; style-src '@NMLP_CHAT_STYLE_HASH@'; connect-src 'self'; \"
    \"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'\";

const char nmlp_chat_page[] =
     @NMLP_CHAT_LITERAL@;
const size_t nmlp_chat_page_bytes = sizeof nmlp_chat_page - 1;
")
list(APPEND NMLP_SERVER_SOURCES ${CMAKE_BINARY_DIR}/generated/chat_page.c)
