/* How long Python's imports take: a span for each really loaded module, down to DEPTH imports
 * inside imports.  Calls Python's C API by name and links no part of Python; knows no ELF.
 *
 * importlib's _find_and_load is called for each module outside sys.modules, by the import statement
 * (from C, by the name in importlib) and by importlib.import_module.  So a function in C replaces
 * _find_and_load and calls the original.  An import of a loaded module costs nothing, and no
 * traceback has a line of ours. */
#include "imports.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "recorder.h"
#include "spread.h"

#define DEPTH 3 /* a package with the program in its import has further imports */
#define NAME_BYTES 96
#define METH_VARARGS 1
#define METH_KEYWORDS 2

HOT bool imports_are_awaited;

typedef void object; /* a PyObject */

struct method {
    const char *name;
    object *(*function)(object *, object *, object *);
    int flags;
    const char *text;
};

/* Python's functions, in the order of `wanted`. */
static struct {
    int (*is_initialized)(void);
    int (*add_pending)(int (*)(void *), void *);
    object *(*text)(const char *);
    object *(*module)(object *);
    object *(*get)(object *, const char *);
    int (*set)(object *, const char *, object *);
    object *(*function)(struct method *, object *, object *);
    object *(*call)(object *, object *, object *);
    object *(*item)(object *, intptr_t);
    const char *(*utf8)(object *);
    void (*clear)(void);
    void (*release)(object *);
} python;

static const char *const wanted[] = {
    "Py_IsInitialized",
    "Py_AddPendingCall",
    "PyUnicode_FromString",
    "PyImport_GetModule",
    "PyObject_GetAttrString",
    "PyObject_SetAttrString",
    "PyCFunction_NewEx",
    "PyObject_Call",
    "PyTuple_GetItem",
    "PyUnicode_AsUTF8",
    "PyErr_Clear",
    "Py_DecRef",
};

static object *original;
static _Thread_local uint32_t depth INITIAL_EXEC;

/* "import " and the package: the modules of a package are loaded for the package. */
static void name_import(object *arguments, char *name)
{
    object *module = python.item(arguments, 0);
    const char *said = module ? python.utf8(module) : NULL;
    size_t bytes;

    strcpy(name, "import ");
    if (!said) {
        python.clear();
        strcat(name, "?");
        return;
    }
    bytes = strcspn(said, ".");
    strncat(name, said, bytes < NAME_BYTES ? bytes : NAME_BYTES);
}

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (!strcmp(name, *names))
            return true;
    return false;
}

/* Adapters patch the modules at once, also in a program without a framework. */
static void bring_adapters(object *arguments)
{
    static const char *const clients[] = {"http.client",
                                          "aiohttp.client",
                                          "httpx._client",
                                          "httpx2._client",
                                          "obstore",
                                          "s3torchconnector",
                                          NULL};
    static const char *const loaders[] = {"penstock.feed.feed", "spdl.pipeline._pipeline",
                                          "datasets.iterable_dataset", "webdataset.pipeline", NULL};
    object *module = python.item(arguments, 0);
    const char *name = module ? python.utf8(module) : NULL;

    if (!name)
        python.clear();
    else if (is_one_of(name, loaders))
        spread_into_python(true);
    else if (is_one_of(name, clients))
        spread_into_python(false);
}

static object *find_and_load(object *self, object *arguments, object *keywords)
{
    char name[8 + NAME_BYTES];
    uint64_t handle, cpu_ns;
    object *module;

    (void)self;
    bring_adapters(arguments);
    if (depth >= DEPTH || !recorder_on)
        return python.call(original, arguments, keywords);
    name_import(arguments, name);
    depth++;
    handle = penstock_begin(OP_SPAN, penstock_name(name), -1);
    cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    module = python.call(original, arguments, keywords);
    penstock_end(handle, depth, clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns);
    depth--;
    return module;
}

static object *importlib(void)
{
    object *name = python.text("_frozen_importlib");
    object *module = name ? python.module(name) : NULL;

    if (name)
        python.release(name);
    return module;
}

/* Runs in the main thread, with Python's lock.  Any failure leaves imports unchanged. */
static int follow(void *argument)
{
    static struct method method = {"_find_and_load", find_and_load, METH_VARARGS | METH_KEYWORDS,
                                   NULL};
    object *module = importlib();
    object *function = NULL;

    (void)argument;
    original = module ? python.get(module, method.name) : NULL;
    if (original)
        function = python.function(&method, NULL, NULL);
    if (!function || python.set(module, method.name, function))
        python.clear();
    if (function)
        python.release(function);
    if (module)
        python.release(module);
    return 0;
}

void imports_await(void)
{
    void **slot = (void **)&python;
    size_t i;

    for (i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!(slot[i] = dlsym(RTLD_DEFAULT, wanted[i])))
            return;
    imports_are_awaited = true;
}

/* Before Python is initialized, a pending call is refused; the first file opened afterwards is the
 * program itself, or a file wanted by `site`. */
void imports_look_slowly(void)
{
    int error = errno;

    if (python.is_initialized() &&
        __atomic_exchange_n(&imports_are_awaited, false, __ATOMIC_RELAXED))
        python.add_pending(follow, NULL);
    errno = error;
}
