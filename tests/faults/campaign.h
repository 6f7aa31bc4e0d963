/* What the parts of the fault campaign share: processes that run with a fault in them, and folders of results. */
#ifndef NMLP_TESTS_FAULTS_CAMPAIGN_H
#define NMLP_TESTS_FAULTS_CAMPAIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAULT_PATH_BYTES = 1024, FAULT_WORDS_MAX = 64, FAULT_TEXT_BYTES = 1 << 20, FAULT_ENTRIES_MAX = 16 };

/* One way to use the program. In `words`, %m is a dense model, %c a compressed one, %t a text, %r the repository, %w
 * the folder of them all. */
typedef struct fault_case {
    const char *name;
    const char *words;
    const char *before; /* words of a run whose output stands there already, or NULL */
    const char *resume; /* words added by whoever goes on after a kill, or NULL where nothing is kept */
    const char *loose;  /* classes whose faults may show in a good result: "unknown CPU", other times; or NULL */
    const char *kept;   /* an output that grows while the run goes on, or NULL */
} fault_case;

extern const fault_case fault_cases[];
extern const size_t fault_n_cases;

typedef struct fault_inputs {
    char work[FAULT_PATH_BYTES]; /* all temporary files */
    char root[FAULT_PATH_BYTES]; /* repository */
    char program[FAULT_PATH_BYTES];
    char preload[FAULT_PATH_BYTES]; /* empty: the program has the interposition linked in */
} fault_inputs;

/* What is to happen inside a run. */
typedef struct fault {
    char classes; /* 'a', 'f', 't', 'c'; 0: nothing is counted */
    long at;      /* 0: count only */
    bool kill;
    long chance;        /* of a million, at each call */
    long after_us;      /* above 0: SIGKILL after this time */
    long usual_us;      /* of an undisturbed run, whatever else the machine does: many times that is a hang */
    const char *places; /* file that receives where each call came from, or NULL */
} fault;

typedef struct fault_entry {
    char name[256];
    uint64_t hash; /* without the marker of unfinished folders */
    bool marked;   /* it is there */
} fault_entry;

typedef struct fault_result {
    int status; /* of waitpid */
    bool hung;  /* killed after the time limit */
    long wall_us;
    long n_calls;                           /* counted; -1 where the process did not end by itself */
    uint64_t out;                           /* hash of stdout */
    uint64_t masked;                        /* the same with every number as one '#' */
    bool explained;                         /* stderr has a line of the program's own */
    char last[400];                         /* end of stderr */
    fault_entry entries[FAULT_ENTRIES_MAX]; /* of the scratch folder, by name */
    size_t n_entries;
} fault_result;

/* Runs the words in the scratch folder of the slot and looks at what it left there. */
void fault_run(fault_result *r, const fault_inputs *in, const char *words, const char *more, const fault *what,
               int slot);
/* Empties the slot's folder and puts a copy of `from` there, where given. */
void fault_scratch_reset(const fault_inputs *in, int slot, const char *from);
void fault_scratch_path(char out[FAULT_PATH_BYTES], const fault_inputs *in, int slot);
const fault_entry *fault_entry_find(const fault_result *r, const char *name);
/* One undisturbed run: whether what it writes is on disk before it takes its place. */
bool fault_sync_check(const fault_inputs *in, const fault_case *c);
/* Writes the models and texts of the cases below in->work. */
void fault_inputs_make(const fault_inputs *in);
/* Runs the server that argv names, which loads `preload` ("": nothing), asks it and ends as it does. */
int fault_serve(const char *preload, char **argv);
/* Writes a dense model of a few kilobytes. */
int fault_model_write(const char *dir, double ratio);

/* Whether a name is one of several, which have commas between them. */
bool fault_is_listed(const char *names, const char *name);

#endif
