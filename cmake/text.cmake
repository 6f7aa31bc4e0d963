# Text files as C string literals, so that the program carries them with it and they stay files one can read and edit.
function(nmlp_text_literal out path)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  # Read byte-wise as hex: CMake lists would eat brackets and semicolons.
  file(READ ${path} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" text "${hex}")
  # A string a source line keeps the generated literal below compiler limits.
  string(REPLACE "\\x0a" "\\n\"\n     \"" text "${text}")
  set(${out} "\"${text}\"" PARENT_SCOPE)
endfunction()

# The assets of reports.
nmlp_text_literal(NMLP_PAGE_STYLE ${CMAKE_SOURCE_DIR}/src/report/page.css)
nmlp_text_literal(NMLP_PAGE_SCRIPT ${CMAKE_SOURCE_DIR}/src/report/page.js)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/page_assets.c @ONLY CONTENT
"#include \"report/page_assets.h\"

const char nmlp_page_style[] =
     @NMLP_PAGE_STYLE@;
const char nmlp_page_script[] =
     @NMLP_PAGE_SCRIPT@;
")
list(APPEND NMLP_LIBRARY_SOURCES ${CMAKE_BINARY_DIR}/generated/page_assets.c)

nmlp_text_literal(NMLP_PAPER_PUBLISHED ${CMAKE_SOURCE_DIR}/tests/data/published.csv)
nmlp_text_literal(NMLP_PAPER_PERPLEXITY ${CMAKE_SOURCE_DIR}/docs/data/reproduced-perplexity.csv)
nmlp_text_literal(NMLP_PAPER_ACCURACY ${CMAKE_SOURCE_DIR}/docs/data/measured-accuracy.csv)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/paper_csv.c @ONLY CONTENT
"#include \"cli/paper_data.h\"

const char nmlp_paper_published_csv[] =
     @NMLP_PAPER_PUBLISHED@;
const char nmlp_paper_perplexity_csv[] =
     @NMLP_PAPER_PERPLEXITY@;
const char nmlp_paper_accuracy_csv[] =
     @NMLP_PAPER_ACCURACY@;
")
set(NMLP_CLI_GENERATED ${CMAKE_BINARY_DIR}/generated/paper_csv.c)
