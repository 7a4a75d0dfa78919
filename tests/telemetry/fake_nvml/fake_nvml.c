/* A libnvidia-ml without a GPU, for tests.
 *
 * Every answer comes from a table of words that a test fills: fake_set("gpu0.power_mw", "71000").
 * A word that is not set has a default, so that an empty table is one healthy GPU.
 *
 *   gpu<i>.error.<function>   return code of that function for that GPU
 *   error.<function>          the same for all GPUs and for functions without a GPU
 *   delay_ms.<function>       how long it takes
 *   crash_at.<function>       the call of it with that number ends the process by a bad access
 *   gpu<i>.lost               every call on it says that the GPU is lost
 *   gpu<i>.<value>            what it gives, see below
 *
 * fake_calls(function) counts calls since fake_reset(). In a child process the table may be
 * given as lines "word value" in the file that FAKE_NVML_SCRIPT names.
 *
 * Built with -DOLD_DRIVER the newer functions are not there at all.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))
#define MAX_WORDS 512
#define MAX_GPUS 16
#define MAX_PARTS 8

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
       TIMEOUT = 10, LOST = 15, VERSION_MISMATCH = 25 };

typedef unsigned long long u64;
typedef struct { int gpu; int part; } *device_t;  /* part -1: the GPU itself */
typedef struct { char key[96]; char text[160]; } word_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static word_t words[MAX_WORDS], calls[MAX_WORDS];
static int n_words, n_calls, inits;
static struct { int gpu; int part; } devices[MAX_GPUS][MAX_PARTS + 1];

static word_t *find(word_t *table, int n, const char *key) {
    for (int i = 0; i < n; i++)
        if (strcmp(table[i].key, key) == 0) return &table[i];
    return NULL;
}

API void fake_set(const char *key, const char *text) {
    pthread_mutex_lock(&lock);
    word_t *word = find(words, n_words, key);
    if (word == NULL && n_words < MAX_WORDS) word = &words[n_words++];
    if (word != NULL) {
        snprintf(word->key, sizeof word->key, "%s", key);
        snprintf(word->text, sizeof word->text, "%s", text);
    }
    pthread_mutex_unlock(&lock);
}

API void fake_unset(const char *key) {
    pthread_mutex_lock(&lock);
    word_t *word = find(words, n_words, key);
    if (word != NULL) *word = words[--n_words];
    pthread_mutex_unlock(&lock);
}

API void fake_reset(void) {
    pthread_mutex_lock(&lock);
    n_words = n_calls = 0;
    pthread_mutex_unlock(&lock);
}

API int fake_calls(const char *function) {
    pthread_mutex_lock(&lock);
    word_t *word = find(calls, n_calls, function);
    int count = word == NULL ? 0 : atoi(word->text);
    pthread_mutex_unlock(&lock);
    return count;
}

API int fake_inits(void) { return inits; }

/* The text of a word, or NULL. Copied, because another thread may change the table. */
static const char *text_of(const char *key, char *into, size_t size) {
    pthread_mutex_lock(&lock);
    word_t *word = find(words, n_words, key);
    if (word != NULL) snprintf(into, size, "%s", word->text);
    pthread_mutex_unlock(&lock);
    return word == NULL ? NULL : into;
}

static u64 number(const char *key, u64 otherwise) {
    char text[160];
    return text_of(key, text, sizeof text) == NULL ? otherwise : strtoull(text, NULL, 0);
}

static const char *key_of(device_t device, const char *name, char *into, size_t size) {
    if (device->part < 0) snprintf(into, size, "gpu%d.%s", device->gpu, name);
    else snprintf(into, size, "gpu%d.mig%d.%s", device->gpu, device->part, name);
    return into;
}

static u64 value(device_t device, const char *name, u64 otherwise) {
    char key[96];
    return number(key_of(device, name, key, sizeof key), otherwise);
}

static void count_call(const char *function) {
    pthread_mutex_lock(&lock);
    word_t *word = find(calls, n_calls, function);
    if (word == NULL && n_calls < MAX_WORDS) {
        word = &calls[n_calls++];
        snprintf(word->key, sizeof word->key, "%s", function);
        strcpy(word->text, "0");
    }
    if (word != NULL) snprintf(word->text, sizeof word->text, "%d", atoi(word->text) + 1);
    pthread_mutex_unlock(&lock);
}

/* What every function does first: count, wait, and find out whether it is to fail. */
static int enter(device_t device, const char *function) {
    char key[96], name[96];
    count_call(function);
    snprintf(key, sizeof key, "crash_at.%s", function);
    u64 crash_at = number(key, 0);
    if (crash_at && crash_at == (u64)fake_calls(function)) raise(SIGSEGV);
    snprintf(key, sizeof key, "delay_ms.%s", function);
    u64 wait_ms = number(key, 0);
    if (wait_ms) {
        struct timespec wait = {wait_ms / 1000, (long)(wait_ms % 1000) * 1000000L};
        nanosleep(&wait, NULL);
    }
    if (inits == 0) return UNINITIALIZED;
    if (device != NULL) {
        snprintf(key, sizeof key, "gpu%d.lost", device->gpu);
        if (number(key, 0)) return LOST;
        snprintf(name, sizeof name, "error.%s", function);
        int code = (int)value(device, name, OK);
        if (code) return code;
        if ((code = (int)value(device, "error", OK))) return code;
    }
    snprintf(key, sizeof key, "error.%s", function);
    int code = (int)number(key, OK);
    return code ? code : (int)number("error", OK);
}

#define ENTER(device) do { int code_ = enter((device), __func__); if (code_) return code_; } while (0)

static void read_script(void) {
    const char *path = getenv("FAKE_NVML_SCRIPT");
    FILE *file = path == NULL ? NULL : fopen(path, "r");
    char key[96], text[160];
    while (file != NULL && fscanf(file, "%95s %159[^\n]", key, text) == 2) fake_set(key, text);
    if (file != NULL) fclose(file);
}

API int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    read_script();
    count_call(__func__);
    int code = (int)number("error.nvmlInitWithFlags", OK);
    if (code) return code;
    inits++;
    for (int gpu = 0; gpu < MAX_GPUS; gpu++)
        for (int part = 0; part <= MAX_PARTS; part++) {
            devices[gpu][part].gpu = gpu;
            devices[gpu][part].part = part - 1;
        }
    return OK;
}

API int nvmlShutdown(void) {
    count_call(__func__);
    if (inits == 0) return UNINITIALIZED;
    inits--;
    return OK;
}

API const char *nvmlErrorString(int code) {
    (void)code;
    return "an error of the fake";
}

API int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(NULL);
    *count = (unsigned)number("count", 1);
    return OK;
}

/* "order" may hold digits: which GPU stands at which index. */
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    char order[160];
    if (index >= MAX_GPUS) return INVALID;
    if (text_of("order", order, sizeof order) != NULL && index < strlen(order))
        index = (unsigned)(order[index] - '0');
    device_t found = (device_t)&devices[index][0];
    ENTER(found);
    *device = found;
    return OK;
}

static void put_text(device_t device, const char *name, const char *otherwise, char *into, unsigned size) {
    char key[96];
    if (text_of(key_of(device, name, key, sizeof key), into, size) == NULL)
        snprintf(into, size, "%s", otherwise);
}

API int nvmlDeviceGetUUID(device_t device, char *into, unsigned size) {
    char otherwise[64];
    ENTER(device);
    if (device->part < 0) snprintf(otherwise, sizeof otherwise, "GPU-%08d", device->gpu);
    else snprintf(otherwise, sizeof otherwise, "MIG-%08d-%d", device->gpu, device->part);
    put_text(device, "uuid", otherwise, into, size);
    return OK;
}

API int nvmlDeviceGetName(device_t device, char *into, unsigned size) {
    ENTER(device);
    put_text(device, "name", "Fake GPU", into, size);
    return OK;
}

typedef struct { char legacy[16]; unsigned domain, bus, device, pci_id, subsystem; char bus_id[32]; } pci_t;

API int nvmlDeviceGetPciInfo_v3(device_t device, pci_t *info) {
    ENTER(device);
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", device->gpu + 1);
    return OK;
}

typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory2_t;

/* Memory is given in MiB. The first form counts what is reserved as used. */
API int nvmlDeviceGetMemoryInfo(device_t device, memory_t *memory) {
    ENTER(device);
    memory->total = value(device, "mem_total", 24ULL << 30);
    memory->used = value(device, "mem_used", 1ULL << 30) + value(device, "mem_reserved", 512ULL << 20);
    memory->free = memory->total - memory->used;
    return OK;
}

#ifndef OLD_DRIVER
API int nvmlDeviceGetMemoryInfo_v2(device_t device, memory2_t *memory) {
    ENTER(device);
    if (memory->version != (sizeof *memory | 2u << 24)) return VERSION_MISMATCH;
    memory->total = value(device, "mem_total", 24ULL << 30);
    memory->used = value(device, "mem_used", 1ULL << 30);
    memory->reserved = value(device, "mem_reserved", 512ULL << 20);
    memory->free = memory->total - memory->used - memory->reserved;
    return OK;
}
#endif

typedef struct { unsigned gpu, memory; } rates_t;

API int nvmlDeviceGetUtilizationRates(device_t device, rates_t *rates) {
    ENTER(device);
    rates->gpu = (unsigned)value(device, "util", 50);
    rates->memory = (unsigned)value(device, "mem_util", 25);
    return OK;
}

#define NUMBER(function, type, name, otherwise)       \
    API int function(device_t device, type *result) { \
        ENTER(device);                                \
        *result = (type)value(device, name, otherwise); \
        return OK;                                    \
    }

NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power_mw", 100000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "limit_mw", 300000)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, u64, "energy_mj", 1000000)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, "persistence", 1)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, u64, "throttle", 0)
#ifndef OLD_DRIVER
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64, "throttle", 0)
#endif
NUMBER(nvmlDeviceGetSupportedEventTypes, u64, "event_types", 0x1b)

API int nvmlDeviceGetCudaComputeCapability(device_t device, int *major, int *minor) {
    ENTER(device);
    *major = (int)value(device, "cc_major", 8);
    *minor = (int)value(device, "cc_minor", 6);
    return OK;
}

API int nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *celsius) {
    (void)sensor;
    ENTER(device);
    *celsius = (unsigned)value(device, "temperature", 45);
    return OK;
}

API int nvmlDeviceGetClockInfo(device_t device, unsigned clock, unsigned *mega) {
    ENTER(device);
    *mega = (unsigned)(clock == 2 ? value(device, "clock_mem", 5000) : value(device, "clock_sm", 1500));
    return OK;
}

API int nvmlDeviceGetTotalEccErrors(device_t device, unsigned type, unsigned counter, u64 *count) {
    (void)type, (void)counter;
    ENTER(device);
    *count = value(device, "ecc", 0);
    return OK;
}

#ifndef OLD_DRIVER
typedef struct {
    unsigned field, scope;
    long long stamp, latency;
    unsigned type;
    int code;
    u64 value;
} field_t;

/* gpu<i>.field<number>.<scope>: a field without that word is not supported and holds 0. */
API int nvmlDeviceGetFieldValues(device_t device, int n, field_t *fields) {
    char key[96], name[48];
    ENTER(device);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "field%u.%u", fields[i].field, fields[i].scope);
        u64 found = number(key_of(device, name, key, sizeof key), ~0ULL);
        fields[i].type = 1;
        fields[i].code = found == ~0ULL ? NOT_SUPPORTED : OK;
        fields[i].value = found == ~0ULL ? 0 : found;
    }
    return OK;
}
#endif

typedef struct { unsigned pid; u64 used; unsigned gi, ci; } process_t;
/* The form of R535: longer by one number, under the same name of the function. */
typedef struct { unsigned pid; u64 used; unsigned gi, ci; u64 protected_; } process535_t;

/* gpu<i>.processes: "pid:bytes pid:bytes"; bytes may be -1 for "not available". */
API int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *n, void *into) {
    char key[96], text[160];
    unsigned found = 0;
    ENTER(device);
    int r535 = value(device, "r535", 0) != 0;
    if (text_of(key_of(device, "processes", key, sizeof key), text, sizeof text) == NULL) text[0] = 0;
    for (char *rest = text, *word; (word = strtok_r(rest, " ", &rest)) != NULL; found++) {
        unsigned pid = (unsigned)strtoul(word, &word, 0);
        u64 used = *word == ':' ? (u64)strtoll(word + 1, NULL, 0) : 0;
        if (into == NULL || found >= *n) continue;
        if (r535) ((process535_t *)into)[found] = (process535_t){pid, used, ~0u, ~0u, 0};
        else ((process_t *)into)[found] = (process_t){pid, used, ~0u, ~0u};
    }
    unsigned room = *n;
    *n = found;
    return found > room ? TOO_SMALL : OK;
}

typedef struct { unsigned pid; u64 stamp; unsigned sm, memory, encoder, decoder; } share_t;

/* gpu<i>.shares: "pid:stamp:percent ..."; only samples after the stamp asked for are given,
 * unless gpu<i>.shares_all is set. */
API int nvmlDeviceGetProcessUtilization(device_t device, share_t *into, unsigned *n, u64 since) {
    char key[96], text[160];
    unsigned found = 0;
    ENTER(device);
    snprintf(key, sizeof key, "%llu", since);
    fake_set("asked_since", key);
    if (text_of(key_of(device, "shares", key, sizeof key), text, sizeof text) == NULL) return NOT_FOUND;
    for (char *rest = text, *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        share_t share = {0};
        share.pid = (unsigned)strtoul(word, &word, 0);
        share.stamp = *word == ':' ? strtoull(word + 1, &word, 0) : 0;
        share.sm = *word == ':' ? (unsigned)strtoul(word + 1, &word, 0) : 0;
        if (share.stamp <= since && !value(device, "shares_all", 0)) continue;
        if (into != NULL && found < *n) into[found] = share;
        found++;
    }
    unsigned room = *n;
    *n = found;
    return found > room || (into == NULL && found) ? TOO_SMALL : OK;
}

API u64 fake_number(const char *key) { return number(key, 0); }

API int nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending) {
    ENTER(device);
    if (value(device, "mig", 2) == 2) return NOT_SUPPORTED;
    *current = *pending = (unsigned)value(device, "mig", 0);
    return OK;
}

API int nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *count) {
    ENTER(device);
    *count = MAX_PARTS - 1;
    return OK;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *part) {
    ENTER(device);
    if (index >= value(device, "mig_count", 0)) return NOT_FOUND;
    *part = (device_t)&devices[device->gpu][index + 1];
    return OK;
}

API int nvmlDeviceGetGpuInstanceId(device_t part, unsigned *number) {
    ENTER(part);
    *number = (unsigned)part->part + 7;
    return OK;
}

typedef struct { device_t device; u64 type, data; unsigned gi, ci; } event_t;

static int event_set;

API int nvmlEventSetCreate(void **set) {
    ENTER(NULL);
    *set = &event_set;
    return OK;
}

API int nvmlEventSetFree(void *set) {
    (void)set;
    count_call(__func__);
    return OK;
}

API int nvmlDeviceRegisterEvents(device_t device, u64 types, void *set) {
    (void)types, (void)set;
    ENTER(device);
    return OK;
}

/* gpu<i>.xid: one event with that number, once. */
API int nvmlEventSetWait_v2(void *set, event_t *event, unsigned timeout_ms) {
    char key[96];
    (void)set;
    ENTER(NULL);
    for (int gpu = 0; gpu < MAX_GPUS; gpu++) {
        snprintf(key, sizeof key, "gpu%d.xid", gpu);
        u64 xid = number(key, 0);
        if (xid == 0) continue;
        fake_unset(key);
        *event = (event_t){(device_t)&devices[gpu][0], 0x8, xid, ~0u, ~0u};
        return OK;
    }
    struct timespec wait = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000L};
    nanosleep(&wait, NULL);
    return TIMEOUT;
}
