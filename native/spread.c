#include "spread.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "burst.h"
#include "clock.h"
#include "log.h"
#include "staged.h"

#define PRELOAD "LD_PRELOAD="
/* AddressSanitizer's runtime ends a program with another library in front. */
#define SANITIZER "ASAN_OPTIONS="
#define ANY_ORDER "verify_asan_link_order=0"
#define MARK "PENSTOCK_INJECTED="
#define STAGED "PENSTOCK_STAGED="
#define BURST "PENSTOCK_BURST="
#define PATTERNS "PENSTOCK_BURST_PATTERNS="
#define OWNER "PENSTOCK_BURST_RUN="

static char library[1024];
static char entry_preload[sizeof PRELOAD + sizeof library];
static char entry_run[sizeof "PENSTOCK_RUN=" + sizeof log_folder];
static char entry_budget[40];
static char entry_ticks[40];
static char entry_staged[sizeof STAGED + 4096];
static char entry_burst[sizeof BURST + BURST_FOLDER_BYTES];
static char entry_patterns[sizeof PATTERNS + 4096];
static char entry_owner[sizeof OWNER + 6];
static char entry_mark[] = MARK "1";

static void number_entry(char *entry, const char *name, uint64_t number)
{
    char digits[24];
    char *first = digits + sizeof digits - 1;

    *first = 0;
    do
        *--first = (char)('0' + number % 10);
    while (number /= 10);
    strcat(strcpy(entry, name), first);
}

static void name_owner(uint32_t run)
{
    char *at = strcpy(entry_owner, OWNER) + strlen(OWNER);
    int bits;

    for (bits = 20; bits >= 0; bits -= 4)
        *at++ = "0123456789abcdef"[run >> bits & 15];
    *at = 0;
}

void spread_setup(const char *folder, uint64_t budget_bytes)
{
    Dl_info where;

    if (!library[0] && dladdr((void *)spread_setup, &where) && where.dli_fname[0] == '/' &&
        strlen(where.dli_fname) < sizeof library)
        strcpy(library, where.dli_fname);
    strcat(strcpy(entry_preload, PRELOAD), library);
    strcat(strcpy(entry_run, "PENSTOCK_RUN="), folder);
    number_entry(entry_budget, "PENSTOCK_BUDGET=", budget_bytes);
    number_entry(entry_ticks, "PENSTOCK_TICKS=", clock_ticks_per_s);
    strcat(strcpy(entry_staged, STAGED), staged_path());
    strcat(strcpy(entry_burst, BURST), burst_folder());
    strcat(strcpy(entry_patterns, PATTERNS), burst_patterns());
    name_owner(burst_run());
}

static bool is_named(const char *entry, const char *name)
{
    return !strncmp(entry, name, strlen(name));
}

static const char *value_of(char *const *environment, const char *name)
{
    for (; environment && *environment; environment++)
        if (is_named(*environment, name))
            return *environment + strlen(name);
    return NULL;
}

bool spread_has_all(char *const *environment)
{
    const char *preload = value_of(environment, PRELOAD);
    bool has_run = false;

    for (; environment && *environment; environment++)
        has_run |= is_named(*environment, "PENSTOCK_RUN=");
    return !library[0] || (has_run && preload && strstr(preload, library));
}

size_t spread_preload_bytes(char *const *environment)
{
    const char *preload = value_of(environment, PRELOAD);
    const char *options = value_of(environment, SANITIZER);

    return sizeof entry_preload + 1 + (preload ? strlen(preload) : 0) + sizeof SANITIZER ANY_ORDER +
           1 + (options ? strlen(options) : 0);
}

void spread_fill(char *const *environment, char **copy, char *preload)
{
    const char *theirs = value_of(environment, PRELOAD);
    const char *options = value_of(environment, SANITIZER);
    char *sanitizer;

    for (; environment && *environment; environment++)
        if (!is_named(*environment, PRELOAD) && !is_named(*environment, "PENSTOCK_") &&
            !is_named(*environment, SANITIZER))
            *copy++ = *environment;
    strcpy(preload, entry_preload);
    if (theirs && *theirs && !strstr(theirs, library))
        strcat(strcat(preload, ":"), theirs);
    *copy++ = preload;
    sanitizer = preload + strlen(preload) + 1;
    strcpy(sanitizer, SANITIZER);
    if (options && *options)
        strcat(strcat(sanitizer, options), ":");
    *copy++ = strcat(sanitizer, ANY_ORDER);
    *copy++ = entry_run;
    *copy++ = entry_budget;
    *copy++ = entry_ticks;
    if (staged_is_on())
        *copy++ = entry_staged;
    if (burst_is_on()) {
        *copy++ = entry_burst;
        *copy++ = entry_patterns;
        *copy++ = entry_owner;
    }
    *copy++ = entry_mark;
    *copy = NULL;
}

/* "ours:theirs" becomes "theirs"; false: nothing of theirs is left. */
static bool strip_library(char *entry)
{
    char *value = entry + strlen(PRELOAD);
    char *ours = strstr(value, library);
    char *rest;

    if (!ours)
        return true;
    rest = ours + strlen(library);
    if (*rest == ':' || *rest == ' ')
        rest++;
    memmove(ours, rest, strlen(rest) + 1);
    return *value;
}

void spread_hide(void)
{
    char **from = environ;
    char **to = environ;
    bool is_injected = false;

    for (; from && *from; from++)
        is_injected |= is_named(*from, MARK);
    if (!is_injected)
        return;
    for (from = environ; *from; from++) {
        if (is_named(*from, "PENSTOCK_"))
            continue;
        if (is_named(*from, PRELOAD) && !strip_library(*from))
            continue;
        *to++ = *from;
    }
    *to = NULL;
}

/* --- Python ----------------------------------------------------------------------------------- */

static int (*run_string)(const char *, void *);

static int bootstrap(void *argument)
{
    static const char before[] = "try:\n exec(compile(open('";
    static const char middle[] = "', encoding='utf-8').read(), '";
    static const char after[] = "', 'exec'), {'__name__': 'penstock_bootstrap";
    static const char of_clients[] = "_clients";
    static const char file[] = "', '__file__': '";
    static const char end[] = "'})\nexcept BaseException:\n pass\n";
    char path[sizeof library + 32];
    char code[sizeof before + sizeof middle + sizeof after + sizeof of_clients + sizeof file +
              sizeof end + 3 * sizeof path];
    char *slash;

    strcpy(path, library);
    slash = strrchr(path, '/');
    if (!slash || strpbrk(path, "'\\\n"))
        return 0;
    strcpy(slash + 1, "adapters/bootstrap.py");
    strcat(strcpy(code, before), path);
    strcat(strcat(code, middle), path);
    strcat(strcat(code, after), argument ? of_clients : "");
    strcat(strcat(code, file), path);
    strcat(code, end);
    run_string(code, NULL);
    return 0;
}

void spread_into_python(bool has_framework)
{
    int (*add_pending)(int (*)(void *), void *);

    add_pending = (int (*)(int (*)(void *), void *))dlsym(RTLD_DEFAULT, "Py_AddPendingCall");
    run_string = (int (*)(const char *, void *))dlsym(RTLD_DEFAULT, "PyRun_SimpleStringFlags");
    if (add_pending && run_string && library[0])
        add_pending(bootstrap, has_framework ? NULL : library);
}
