/* Texts that the build makes into C (cmake/text.cmake): published figures, perplexities and accuracies measured. */
#ifndef NMLP_CLI_PAPER_DATA_H
#define NMLP_CLI_PAPER_DATA_H

extern const char nmlp_paper_published_csv[];
extern const char nmlp_paper_perplexity_csv[];
extern const char nmlp_paper_accuracy_csv[];

#endif
