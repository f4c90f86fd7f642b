/* A stand-in for NVIDIA's libnvidia-ml.so.1 that answers what a script file tells it to.
 * The format of the script is told in __init__.py beside this file. The script is read again for
 * every query, so that a test may replace it while a process runs. */
#define _GNU_SOURCE
#include "script.h"

/* ---- session and handles ---- */

int nvmlInitWithFlags(u32 flags) {
    char text[TEXT];
    int code = find("system", "nvmlInitWithFlags", text) ? act(text) : OK;
    if (code == OK && opened_by != getpid()) opened = 0;
    if (code == OK) opened++, opened_by = getpid();
    note("system", "nvmlInitWithFlags", code);
    return code;
}

int nvmlShutdown(void) {
    int code = opened && opened_by == getpid() ? OK : UNINITIALIZED;
    if (code == OK) opened--;
    note("system", "nvmlShutdown", code);
    return code;
}

static int exists(const char *who) { char text[TEXT]; return find(who, "nvmlDeviceGetUUID", text); }

/* `function` is how the handle is asked for: the script may refuse that with an error of its own. */
static int open_device(const char *who, const char *function, Device **out) {
    char text[TEXT];
    Device *device = device_named(who);
    int code = ask(device, function, text, NULL);
    if (code == OK) *out = device;
    return code;
}

static int top_level_devices(void) {
    char who[16];
    int count = 0;
    while (snprintf(who, sizeof who, "%d", count), exists(who)) count++;
    return count;
}

int nvmlDeviceGetCount_v2(u32 *out) {
    char text[TEXT];
    int earlier, code = ask(NULL, "nvmlDeviceGetCount_v2", text, &earlier);
    if (code == OK) *out = number(text, earlier);
    if (code == NOT_SUPPORTED) *out = top_level_devices(), code = OK;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, Device **out) {
    char who[16];
    snprintf(who, sizeof who, "%u", index);
    if (index >= (u32)top_level_devices()) return INVALID_ARGUMENT;
    return open_device(who, "nvmlDeviceGetHandleByIndex_v2", out);
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, u32 index, Device **out) {
    char who[16];
    snprintf(who, sizeof who, "%.8s.%u", device->who, index % 1000);
    return exists(who) ? open_device(who, "nvmlDeviceGetMigDeviceHandleByIndex", out) : NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *device, Device **out) {
    char who[16];
    strcpy(who, device->who);
    if (!strchr(who, '.')) return INVALID_ARGUMENT;
    *strchr(who, '.') = 0;
    return open_device(who, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", out);
}

/* Finds the device, MIG or not, whose first answer to `key` is the text asked for. */
static int handle_by(const char *function, const char *key, const char *wanted, Device **out) {
    char who[16], text[TEXT];
    if (!opened || opened_by != getpid()) return UNINITIALIZED;
    for (int index = 0; index < top_level_devices(); index++)
        for (int part = -1; part < 8; part++) {
            snprintf(who, sizeof who, part < 0 ? "%d" : "%d.%d", index, part);
            if (!find(who, key, text)) continue;
            choose(text, 0);
            if (strcmp(text, wanted) == 0) return open_device(who, function, out);
        }
    note("system", function, NOT_FOUND);
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **out) {
    return handle_by("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID", uuid, out);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Device **out) {
    return handle_by("nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetPciInfo_v3", bus, out);
}

int nvmlDeviceIsMigDeviceHandle(Device *device, u32 *out) { *out = strchr(device->who, '.') != NULL; return OK; }

int nvmlDeviceGetIndex(Device *device, u32 *out) {
    const char *part = strrchr(device->who, '.');
    *out = atoi(part ? part + 1 : device->who);
    return is_lost(device) ? LOST : OK;
}

/* ---- texts ---- */

#define SYSTEM_TEXT(function) \
    int function(char *out, u32 size) { return ask_text(NULL, #function, out, size); }
#define DEVICE_TEXT(function) \
    int function(Device *d, char *out, u32 size) { return d ? ask_text(d, #function, out, size) : INVALID_ARGUMENT; }
SYSTEM_TEXT(nvmlSystemGetDriverVersion)
SYSTEM_TEXT(nvmlSystemGetNVMLVersion)
DEVICE_TEXT(nvmlDeviceGetName)
DEVICE_TEXT(nvmlDeviceGetUUID)
DEVICE_TEXT(nvmlDeviceGetSerial)
DEVICE_TEXT(nvmlDeviceGetVbiosVersion)

int nvmlSystemGetProcessName(u32 pid, char *out, u32 size) {
    char key[96];
    return ask_text(NULL, keyed(key, "nvmlSystemGetProcessName", 1, pid), out, size);
}

static int cuda_version(const char *function, int *out) {
    char text[TEXT];
    int code = ask(NULL, function, text, NULL);
    if (code == OK) *out = number(text, 0);
    return code;
}
int nvmlSystemGetCudaDriverVersion(int *out) { return cuda_version("nvmlSystemGetCudaDriverVersion", out); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return cuda_version("nvmlSystemGetCudaDriverVersion_v2", out); }

/* ---- numbers ---- */

#define ONE(function, type) \
    int function(Device *d, type *out) { \
        u64 n[1]; int code = ask_numbers(d, #function, n, 1); if (code == OK) *out = n[0]; return code; }
#define TWO(function) \
    int function(Device *d, u32 *a, u32 *b) { \
        u64 n[2]; int code = ask_numbers(d, #function, n, 2); if (code == OK) *a = n[0], *b = n[1]; return code; }
#define ONE_BY(function) \
    int function(Device *d, u32 x, u32 *out) { \
        char key[96]; u64 n[1]; \
        int code = ask_numbers(d, keyed(key, #function, 1, x), n, 1); if (code == OK) *out = n[0]; return code; }
#define ONE_BY_TWO(function, type) \
    int function(Device *d, u32 x, u32 y, type *out) { \
        char key[96]; u64 n[1]; \
        int code = ask_numbers(d, keyed(key, #function, 2, x, y), n, 1); if (code == OK) *out = n[0]; return code; }

ONE(nvmlDeviceGetPowerUsage, u32)
ONE(nvmlDeviceGetEnforcedPowerLimit, u32)
ONE(nvmlDeviceGetPowerManagementLimit, u32)
ONE(nvmlDeviceGetPowerManagementDefaultLimit, u32)
ONE(nvmlDeviceGetMinorNumber, u32)
ONE(nvmlDeviceGetPersistenceMode, u32)
ONE(nvmlDeviceGetComputeMode, u32)
ONE(nvmlDeviceGetDisplayActive, u32)
ONE(nvmlDeviceGetDisplayMode, u32)
ONE(nvmlDeviceGetPerformanceState, u32)
ONE(nvmlDeviceGetCurrPcieLinkGeneration, u32)
ONE(nvmlDeviceGetMaxPcieLinkGeneration, u32)
ONE(nvmlDeviceGetCurrPcieLinkWidth, u32)
ONE(nvmlDeviceGetMaxPcieLinkWidth, u32)
ONE(nvmlDeviceGetNumaNodeId, u32)
ONE(nvmlDeviceGetGpuInstanceId, u32)
ONE(nvmlDeviceGetComputeInstanceId, u32)
ONE(nvmlDeviceGetMaxMigDeviceCount, u32)
ONE(nvmlDeviceGetArchitecture, u32)
ONE(nvmlDeviceGetBrand, u32)
ONE(nvmlDeviceGetNumGpuCores, u32)
ONE(nvmlDeviceGetRetiredPagesPendingStatus, u32)
ONE(nvmlDeviceGetPcieReplayCounter, u32)
ONE(nvmlDeviceGetTotalEnergyConsumption, u64)
ONE(nvmlDeviceGetCurrentClocksThrottleReasons, u64)
ONE(nvmlDeviceGetCurrentClocksEventReasons, u64)
ONE(nvmlDeviceGetSupportedClocksThrottleReasons, u64)
ONE(nvmlDeviceGetSupportedClocksEventReasons, u64)
TWO(nvmlDeviceGetMigMode)
TWO(nvmlDeviceGetEccMode)
TWO(nvmlDeviceGetPowerManagementLimitConstraints)
TWO(nvmlDeviceGetCudaComputeCapability)
ONE_BY(nvmlDeviceGetClockInfo)
ONE_BY(nvmlDeviceGetMaxClockInfo)
ONE_BY(nvmlDeviceGetTemperature)
ONE_BY(nvmlDeviceGetTemperatureThreshold)
ONE_BY(nvmlDeviceGetPcieThroughput)
ONE_BY(nvmlDeviceGetNvLinkState)
ONE_BY(nvmlDeviceGetNvLinkVersion)
ONE_BY_TWO(nvmlDeviceGetClock, u32)
ONE_BY_TWO(nvmlDeviceGetNvLinkCapability, u32)
ONE_BY_TWO(nvmlDeviceGetTotalEccErrors, u64)

int nvmlDeviceGetMemoryErrorCounter(Device *d, u32 kind, u32 counter, u32 location, u64 *out) {
    char key[96];
    return ask_numbers(d, keyed(key, "nvmlDeviceGetMemoryErrorCounter", 3, kind, counter, location), out, 1);
}

int nvmlDeviceGetUtilizationRates(Device *d, u32 out[2]) {
    u64 n[2];
    int code = ask_numbers(d, "nvmlDeviceGetUtilizationRates", n, 2);
    if (code == OK) out[0] = n[0], out[1] = n[1];
    return code;
}

int nvmlDeviceGetMemoryInfo(Device *d, u64 out[3]) { return ask_numbers(d, "nvmlDeviceGetMemoryInfo", out, 3); }
int nvmlDeviceGetBAR1MemoryInfo(Device *d, u64 out[3]) { return ask_numbers(d, "nvmlDeviceGetBAR1MemoryInfo", out, 3); }

typedef struct { u32 version; u64 values[4]; } Memory;
int nvmlDeviceGetMemoryInfo_v2(Device *d, Memory *out) {
    if (out->version != 0x02000028) return VERSION_MISMATCH;
    return ask_numbers(d, "nvmlDeviceGetMemoryInfo_v2", out->values, 4);
}

typedef struct { u32 version, sensor; int celsius; } Temperature;
int nvmlDeviceGetTemperatureV(Device *d, Temperature *out) {
    char key[96];
    u64 n[1];
    if (out->version != 0x0100000C) return VERSION_MISMATCH;
    int code = ask_numbers(d, keyed(key, "nvmlDeviceGetTemperatureV", 1, out->sensor), n, 1);
    if (code == OK) out->celsius = n[0];
    return code;
}

int nvmlDeviceGetRemappedRows(Device *d, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    u64 n[4];
    int code = ask_numbers(d, "nvmlDeviceGetRemappedRows", n, 4);
    if (code == OK) *corrected = n[0], *uncorrected = n[1], *pending = n[2], *failed = n[3];
    return code;
}

int nvmlDeviceGetCpuAffinity(Device *d, u32 size, u64 *out) {
    memset(out, 0, size * sizeof *out);
    return ask_numbers(d, "nvmlDeviceGetCpuAffinity", out, 1);
}

int nvmlDeviceGetMemoryAffinity(Device *d, u32 size, u64 *out, u32 scope) {
    memset(out, 0, size * sizeof *out);
    return ask_numbers(d, "nvmlDeviceGetMemoryAffinity", out, 1);
}

/* ---- bus and links ---- */

typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char text[32]; } Pci;
static int pci(Device *d, const char *key, Pci *out) {
    memset(out, 0, sizeof *out);
    int code = d ? ask_text(d, key, out->text, sizeof out->text) : INVALID_ARGUMENT;
    if (code == OK && sscanf(out->text, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3)
        stop("a PCI address looks like 00000000:3B:00.0, not like", out->text);
    return code;
}
int nvmlDeviceGetPciInfo_v3(Device *d, Pci *out) { return pci(d, "nvmlDeviceGetPciInfo_v3", out); }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *d, u32 link, Pci *out) {
    char key[96];
    return pci(d, keyed(key, "nvmlDeviceGetNvLinkRemotePciInfo_v2", 1, link), out);
}

int nvmlDeviceGetTopologyCommonAncestor(Device *a, Device *b, u32 *out) {
    char key[96];
    u64 n[1];
    snprintf(key, sizeof key, "nvmlDeviceGetTopologyCommonAncestor/%s", b->who);
    int code = ask_numbers(a, key, n, 1);
    if (code == OK) *out = n[0];
    return code;
}

int nvmlDeviceGetP2PStatus(Device *a, Device *b, u32 index, u32 *out) {
    char key[96];
    u64 n[1];
    snprintf(key, sizeof key, "nvmlDeviceGetP2PStatus/%s/%u", b->who, index);
    int code = ask_numbers(a, key, n, 1);
    if (code == OK) *out = n[0];
    return code;
}

#include "lists.h"
