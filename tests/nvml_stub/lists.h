/* Queries that give several values at once: processes, fields, buffered samples, GPM. */

/* ---- processes: `PID:BYTES` or `PID:?` a word, `none` for an empty list ---- */

typedef struct { u32 pid; u64 bytes; u32 gpu_instance, compute_instance; } Process;
static int processes(Device *d, const char *key, u32 *count, Process *out) {
    char text[TEXT], *rest, *word;
    int earlier, code = ask(d, key, text, &earlier);
    if (code != OK) return code;
    u32 found = 0, room = *count;
    for (word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *colon = strchr(word, ':');
        if (strcmp(word, "none") == 0) continue;
        if (!colon) stop("a process is PID:BYTES or PID:?, not", word);
        if (out && found < room) {
            u64 bytes = colon[1] == '?' ? ~0ULL : number(colon + 1, earlier);
            out[found] = (Process){strtoul(word, NULL, 10), bytes, ~0u, ~0u};
        }
        found++;
    }
    *count = found;
    return found > room || (found && !out) ? INSUFFICIENT_SIZE : OK;
}
#define PROCESSES(function) \
    int function(Device *d, u32 *count, Process *out) { return processes(d, #function, count, out); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

/* ---- fields, buffered samples, GPM ---- */

typedef union { double real; u64 whole; } Value;
typedef struct { u32 field, scope; long long stamp, latency; u32 type; int code; Value value; } Field;
int nvmlDeviceGetFieldValues(Device *d, int count, Field *fields) {
    char key[96], text[TEXT];
    for (int i = 0; i < count; i++) {
        int earlier;
        Field *field = fields + i;
        keyed(key, "nvmlDeviceGetFieldValues", 2, field->field, field->scope);
        field->code = ask(d, key, text, &earlier);
        if (field->code == LOST) return LOST;
        field->stamp = script_age() * 1e6;
        field->type = 3;                                /* unsigned long long, unless the script says TYPE VALUE */
        char *second = field->code == OK ? strchr(text, ' ') : NULL;
        if (second) field->type = atoi(text);
        if (field->code == OK && field->type == 0) field->value.real = strtod(second + 1, NULL);
        else if (field->code == OK) field->value.whole = number(second ? second + 1 : text, earlier);
    }
    return OK;
}

typedef struct { u64 stamp; Value value; } Buffered;
int nvmlDeviceGetSamples(Device *d, u32 kind, u64 since, u32 *type, u32 *count, Buffered *out) {
    char key[96], text[TEXT];
    u64 values[SAMPLES], now = script_age() * 1e6;
    int earlier, code = ask(d, keyed(key, "nvmlDeviceGetSamples", 1, kind), text, &earlier);
    if (code != OK) return code;
    int held = numbers_in(text, earlier, values, SAMPLES), kept = 0;
    for (int i = 0; i < held; i++) {                    /* one every 1/6 s, the last one now */
        u64 stamp = now + 1000000ULL * 3600 - (held - 1 - i) * 166667ULL;
        if (stamp <= since) continue;
        if (out && (u32)kept < *count) out[kept] = (Buffered){stamp, {.whole = values[i]}};
        kept++;
    }
    *type = 1;
    *count = kept;
    return kept ? OK : NOT_FOUND;
}

typedef struct { Device *device; } GpmSample;
typedef struct { u32 id; int code; double value; const char *texts[3]; } GpmMetric;
typedef struct { u32 version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmQuery;

int nvmlGpmQueryDeviceSupport(Device *d, u32 out[2]) {
    u64 n[1];
    if (out[0] != 1) return VERSION_MISMATCH;
    int code = ask_numbers(d, "nvmlGpmQueryDeviceSupport", n, 1);
    if (code == OK) out[1] = n[0];
    return code;
}

int nvmlGpmSampleAlloc(GpmSample **out) {
    *out = calloc(1, sizeof **out);
    note("system", "nvmlGpmSampleAlloc", OK);
    return OK;
}

int nvmlGpmSampleFree(GpmSample *sample) {
    free(sample);
    note("system", "nvmlGpmSampleFree", OK);
    return OK;
}

int nvmlGpmSampleGet(Device *d, GpmSample *sample) {
    char text[TEXT];
    int code = ask(d, "nvmlGpmSampleGet", text, NULL);
    if (code == OK) sample->device = d;
    return code;
}

int nvmlGpmMigSampleGet(Device *d, u32 instance, GpmSample *sample) {
    char key[96], text[TEXT];
    int code = ask(d, keyed(key, "nvmlGpmMigSampleGet", 1, instance), text, NULL);
    if (code == OK) sample->device = d;
    return code;
}

int nvmlGpmMetricsGet(GpmQuery *query) {
    char key[96], text[TEXT];
    if (query->version != 1) return VERSION_MISMATCH;
    if (!query->first || !query->second || query->first == query->second) return INVALID_ARGUMENT;
    if (!query->first->device || query->first->device != query->second->device) return INVALID_ARGUMENT;
    for (u32 i = 0; i < query->count; i++) {
        GpmMetric *metric = query->metrics + i;
        metric->code = ask(query->first->device, keyed(key, "nvmlGpmMetricsGet", 1, metric->id), text, NULL);
        if (metric->code == LOST) return LOST;
        if (metric->code == OK) metric->value = strtod(text, NULL);
    }
    return OK;
}
