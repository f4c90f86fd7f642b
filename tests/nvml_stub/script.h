/* Reading the script of the stub: what it answers to one query. Its format is told in __init__.py. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { char who[16]; int queries; } Device;   /* the caller's opaque handle */

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       LOST = 15, VERSION_MISMATCH = 25 };
enum { TEXT = 4096, DEVICES = 64, COUNTERS = 4096, SAMPLES = 256 };

static const struct { int code; const char *name, *text; } ERRORS[] = {
    {0, "SUCCESS", "Success"}, {1, "UNINITIALIZED", "Uninitialized"}, {2, "INVALID_ARGUMENT", "Invalid Argument"},
    {3, "NOT_SUPPORTED", "Not Supported"}, {4, "NO_PERMISSION", "Insufficient Permissions"},
    {6, "NOT_FOUND", "Not Found"}, {7, "INSUFFICIENT_SIZE", "Insufficient Size"},
    {9, "DRIVER_NOT_LOADED", "Driver Not Loaded"}, {10, "TIMEOUT", "Timeout"},
    {13, "FUNCTION_NOT_FOUND", "Function Not Found"}, {15, "GPU_IS_LOST", "GPU is lost"},
    {16, "RESET_REQUIRED", "GPU requires reset"}, {18, "LIB_RM_VERSION_MISMATCH", "Driver/library version mismatch"},
    {19, "IN_USE", "In use by another client"}, {20, "MEMORY", "Insufficient Memory"}, {21, "NO_DATA", "No data"},
    {25, "ARGUMENT_VERSION_MISMATCH", "Argument version mismatch"}, {999, "UNKNOWN", "Unknown Error"},
};
enum { ERROR_COUNT = sizeof ERRORS / sizeof *ERRORS };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Device devices[DEVICES];
static int device_count;
static struct { char key[96]; int calls; } counters[COUNTERS];
static int counter_count;
static int opened, opened_by;

static void stop(const char *what, const char *detail) {
    fprintf(stderr, "NVML stub: %s: %s\n", what, detail);
    abort();
}

const char *nvmlErrorString(int code) {
    for (int i = 0; i < ERROR_COUNT; i++)
        if (ERRORS[i].code == code) return ERRORS[i].text;
    return "Unknown Error";
}

static int error_code(const char *word) {
    if (strncmp(word, "NVML_ERROR_", 11) == 0) word += 11;
    for (int i = 0; i < ERROR_COUNT; i++)
        if (strcmp(ERRORS[i].name, word) == 0) return ERRORS[i].code;
    char *end;
    int code = strtol(word, &end, 10);
    if (end == word || *end) stop("no such error", word);
    return code;
}

static void note(const char *who, const char *key, int code) {
    const char *path = getenv("NVML_STUB_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%d %s %s %d\n", getpid(), who, key, code);
    fclose(file);
}

static double script_age(void) {                        /* seconds since the script was written */
    struct stat info;
    struct timespec now;
    if (stat(getenv("NVML_STUB_SCRIPT"), &info)) stop("no script", getenv("NVML_STUB_SCRIPT"));
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec - info.st_mtim.tv_sec + (now.tv_nsec - info.st_mtim.tv_nsec) / 1e9;
}

/* The answer that the script has for a key, without line end; 0 where it has none. */
static int find(const char *who, const char *key, char *text) {
    const char *path = getenv("NVML_STUB_SCRIPT");
    FILE *file = fopen(path ? path : "", "r");
    if (!file) stop("cannot read the file named by NVML_STUB_SCRIPT", path ? path : "(not set)");
    char line[TEXT], name[16], function[96];
    int start, found = 0;
    while (!found && fgets(line, TEXT, file)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] == 0 || line[0] == '#') continue;
        if (sscanf(line, "%15s %95s %n", name, function, &start) < 2) stop("not WHO FUNCTION ANSWER", line);
        found = strcmp(name, who) == 0 && strcmp(function, key) == 0;
        if (found) strcpy(text, line + start);
    }
    fclose(file);
    return found;
}

/* How often a key was asked before, and counts this time. */
static int earlier_calls(const char *who, const char *key) {
    char both[96];
    snprintf(both, sizeof both, "%s %s", who, key);
    int i = 0;
    while (i < counter_count && strcmp(counters[i].key, both)) i++;
    if (i == COUNTERS) stop("too many different queries", both);
    if (i == counter_count) strcpy(counters[counter_count++].key, both);
    return counters[i].calls++;
}

/* Keeps of `a then b then c` the part of this call; the last one lasts. */
static void choose(char *text, int earlier) {
    char *next;
    while (earlier-- > 0 && (next = strstr(text, " then "))) memmove(text, next + 6, strlen(next + 6) + 1);
    if ((next = strstr(text, " then "))) *next = 0;
}

/* Carries out `sleep S`, `crash`, `error E` at the front; leaves the values in `text`. */
static int act(char *text) {
    char word[64];
    double seconds;
    int used = 0;
    if (sscanf(text, "sleep %lf %n", &seconds, &used) == 1 && used) {
        memmove(text, text + used, strlen(text + used) + 1);
        usleep(seconds * 1e6);
    }
    if (strcmp(text, "crash") == 0) abort();
    return sscanf(text, "error %63s", word) == 1 ? error_code(word) : OK;
}

static int is_lost(Device *device) {
    char text[TEXT];
    if (!device || !find(device->who, "lost_after", text)) return 0;
    return device->queries++ >= atoi(text);
}

static Device *device_named(const char *who) {
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < device_count && strcmp(devices[i].who, who)) i++;
    if (i == DEVICES) stop("too many devices", who);
    if (i == device_count) strcpy(devices[device_count++].who, who);
    pthread_mutex_unlock(&lock);
    return devices + i;
}

/* The scripted answer in `text` and how often it was asked for before; an NVML code.
 * `key` is the function's name, then /ARGUMENT for each; the script may leave arguments away at the end. */
static int ask(Device *device, const char *full_key, char *text, int *earlier) {
    char key[96];
    const char *who = device ? device->who : "system";
    int code, calls;
    snprintf(key, sizeof key, "%s", full_key);
    pthread_mutex_lock(&lock);
    if (!opened || opened_by != getpid()) code = UNINITIALIZED;
    else if (is_lost(device)) code = LOST;
    else {
        int found;
        while (!(found = find(who, key, text)) && strrchr(key, '/')) *strrchr(key, '/') = 0;
        calls = earlier_calls(who, full_key);
        if (earlier) *earlier = calls;
        if (found) choose(text, calls);
        else text[0] = 0;
        code = found || strstr(key, "Handle") ? OK : NOT_SUPPORTED;   /* handles need no line */
    }
    pthread_mutex_unlock(&lock);
    if (code == OK) code = act(text);
    note(who, full_key, code);
    return code;
}

static const char *keyed(char *key, const char *function, int count, ...) {
    va_list numbers;
    int length = sprintf(key, "%s", function);
    va_start(numbers, count);
    while (count--) length += sprintf(key + length, "/%u", va_arg(numbers, u32));
    va_end(numbers);
    return key;
}

/* One number as `5`, `0x5`, `-1` or growing: `5+10/s`, `5+10/call`. */
static u64 number(const char *word, int earlier) {
    char *end;
    u64 value = strtoull(word, &end, 0);
    if (*end == '+') {
        double rate = strtod(end + 1, &end);
        value += rate * (strcmp(end, "/call") == 0 ? earlier : script_age());
        if (strcmp(end, "/call") && strcmp(end, "/s")) stop("a number grows by /s or by /call", word);
    } else if (*end) stop("not a number", word);
    return value;
}

static int numbers_in(char *text, int earlier, u64 *out, int most) {
    int count = 0;
    char *rest, *word = strtok_r(text, " ", &rest);
    for (; word && count < most; word = strtok_r(NULL, " ", &rest)) out[count++] = number(word, earlier);
    return count;
}

static int ask_numbers(Device *device, const char *key, u64 *out, int count) {
    char text[TEXT];
    int earlier, code = device ? ask(device, key, text, &earlier) : INVALID_ARGUMENT;
    if (code == OK && numbers_in(text, earlier, out, count) < count) stop("too few numbers", key);
    return code;
}

static int ask_text(Device *device, const char *key, char *out, u32 size) {
    char text[TEXT];
    int code = ask(device, key, text, NULL);
    if (code != OK) return code;
    if (strncmp(text, "hex:", 4) == 0) {
        char *to = text;
        u32 byte;
        for (char *from = text + 4; sscanf(from, "%2x", &byte) == 1; from += 2) *to++ = byte;
        *to = 0;
    }
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}
