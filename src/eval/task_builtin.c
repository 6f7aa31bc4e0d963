/* The seven tasks with lm-evaluation-harness's prompts, and the layouts of the files their authors publish. */
#include <string.h>

#include "eval/task.h"
#include "eval/task_internal.h"

#define OURS                                                                                                           \
    {                                                                                                                  \
        .name = "neuronmlp",                                                                                           \
        .question = "{question}",                                                                                      \
        .choices = {"choices[]"},                                                                                      \
        .n_choices = 1,                                                                                                \
        .gold = "gold",                                                                                                \
        .id = "id",                                                                                                    \
    }

/* AI2's release of ARC and OpenBookQA. */
#define AI2                                                                                                            \
    {                                                                                                                  \
        .name = "ai2",                                                                                                 \
        .question = "{question.stem}",                                                                                 \
        .choices = {"question.choices[].text"},                                                                        \
        .n_choices = 1,                                                                                                \
        .gold_kind = NMLP_GOLD_LABEL,                                                                                  \
        .gold = "answerKey",                                                                                           \
        .labels = "question.choices[].label",                                                                          \
        .id = "id",                                                                                                    \
    }

/* The same as rows of the Hugging Face hub. */
#define AI2_HUB(stem)                                                                                                  \
    {                                                                                                                  \
        .name = "hub",                                                                                                 \
        .question = "{" stem "}",                                                                                      \
        .choices = {"choices.text[]"},                                                                                 \
        .n_choices = 1,                                                                                                \
        .gold_kind = NMLP_GOLD_LABEL,                                                                                  \
        .gold = "answerKey",                                                                                           \
        .labels = "choices.label[]",                                                                                   \
        .id = "id",                                                                                                    \
    }

#define ARC_CSV                                                                                                        \
    {                                                                                                                  \
        .name = "arc-csv",                                                                                             \
        .question = "{question|before:(A)|strip}",                                                                     \
        .choices_kind = NMLP_CHOICES_PAREN,                                                                            \
        .choices = {"{question}"},                                                                                     \
        .n_choices = 1,                                                                                                \
        .gold_kind = NMLP_GOLD_LABEL,                                                                                  \
        .gold = "AnswerKey",                                                                                           \
        .id = "questionID",                                                                                            \
    }

static const nmlp_task tasks[] = {
    {
        .name = "arc_easy",
        .context = "Question: {question}\nAnswer:",
        .continuation = " {choice}",
        .length = "{choice}",
        .layouts = {OURS, AI2, AI2_HUB("question"), ARC_CSV},
        .n_layouts = 4,
    },
    {
        .name = "arc_challenge",
        .context = "Question: {question}\nAnswer:",
        .continuation = " {choice}",
        .length = "{choice}",
        .layouts = {OURS, AI2, AI2_HUB("question"), ARC_CSV},
        .n_layouts = 4,
    },
    {
        .name = "hellaswag",
        .context = "{question}",
        .continuation = " {choice}",
        .length = "{choice}",
        .layouts = {OURS,
                    {.name = "hellaswag",
                     .question = "{activity_label}: {ctx_a} {ctx_b|capitalize}",
                     .choices = {"endings[]"},
                     .n_choices = 1,
                     .gold = "label",
                     .id = "ind",
                     .clean = "hellaswag"}},
        .n_layouts = 2,
    },
    {
        .name = "piqa",
        .context = "Question: {question}\nAnswer:",
        .continuation = " {choice}",
        .length = "{choice}",
        .layouts = {OURS,
                    {.name = "hub",
                     .question = "{goal}",
                     .choices_kind = NMLP_CHOICES_FIELDS,
                     .choices = {"{sol1}", "{sol2}"},
                     .n_choices = 2,
                     .gold = "label",
                     .id = "id"},
                    {.name = "piqa",
                     .question = "{goal}",
                     .choices_kind = NMLP_CHOICES_FIELDS,
                     .choices = {"{sol1}", "{sol2}"},
                     .n_choices = 2,
                     .gold_kind = NMLP_GOLD_LABELS_FILE,
                     .id = "id"}},
        .n_layouts = 3,
    },
    {
        .name = "openbookqa",
        .context = "{question}",
        .continuation = " {choice}",
        .length = "{choice}",
        .layouts = {OURS, AI2, AI2_HUB("question_stem")},
        .n_layouts = 3,
    },
    {
        /* Partial scoring: the choice fills the gap, and the text behind the gap is what is scored. */
        .name = "winogrande",
        .context = "{question|before:_}{choice}",
        .continuation = " {question|after:_|strip}",
        .length = "{question|after:_|strip}",
        .layouts = {OURS,
                    {.name = "winogrande",
                     .question = "{sentence}",
                     .choices_kind = NMLP_CHOICES_FIELDS,
                     .choices = {"{option1}", "{option2}"},
                     .n_choices = 2,
                     .gold_kind = NMLP_GOLD_INDEX1,
                     .gold = "answer",
                     .id = "qID"}},
        .n_layouts = 2,
    },
    {
        .name = "mathqa",
        .context = "Question: {question}\nAnswer:",
        .continuation = " {choice}",
        .length = "{choice}",
        .layouts = {OURS,
                    {.name = "mathqa",
                     .question = "{Problem}",
                     .choices_kind = NMLP_CHOICES_LETTERS,
                     .choices = {"{options}"},
                     .n_choices = 1,
                     .gold_kind = NMLP_GOLD_LABEL,
                     .gold = "correct"}},
        .n_layouts = 2,
    },
};

enum { N_TASKS = sizeof tasks / sizeof tasks[0] };

const nmlp_task_layout nmlp_layout_ours = OURS;

const nmlp_task *nmlp_task_at(size_t i) { return i < N_TASKS ? &tasks[i] : NULL; }

const nmlp_task *nmlp_task_find(const char *name) {
    for (size_t i = 0; i < N_TASKS; i++) {
        if (strcmp(tasks[i].name, name) == 0) return &tasks[i];
    }
    return NULL;
}
