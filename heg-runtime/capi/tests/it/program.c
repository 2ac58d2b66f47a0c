/* A program as somebody would write it with heg.h: `program BUNDLE`. It streams an answer, hears one, cancels one and
   provokes errors, and prints what it saw; an expectation that fails ends it with status 1. */
#include <heg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "line %d: expected %s\n", __LINE__, #what); \
            exit(1); \
        } \
    } while (0)

static const char *QUESTION =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Remind me to call Ana at 5 pm.\"}], \"max_tokens\": 32}";
static const char *LONG_QUESTION =
    "{\"prompt_ids\": [1, 2, 3], \"max_tokens\": 900, \"ignore_eos\": true, \"speculate\": \"off\"}";

/* Prints an error and frees it. */
static void show(int32_t code, heg_error *error) {
    EXPECT(heg_error_code(error) == code);
    printf("%d: %s\n", code, heg_error_message(error));
    heg_error_free(error);
}

static void stream(const heg_engine *engine) {
    heg_answer *answer = NULL;
    heg_error *error = NULL;
    char *ending = NULL;
    const char *piece;
    size_t bytes;
    int32_t code;
    EXPECT(heg_submit(engine, QUESTION, &answer, &error) == HEG_OK);
    while ((code = heg_next(answer, 50, &piece, &bytes, &error)) != HEG_END) {
        EXPECT(code == HEG_OK || code == HEG_PENDING);
        EXPECT(strlen(piece) == bytes);
        fputs(piece, stdout);
    }
    puts("");
    EXPECT(heg_next(answer, -1, &piece, NULL, NULL) == HEG_END);
    EXPECT(heg_ending(answer, &ending, &error) == HEG_OK);
    EXPECT(strstr(ending, "\"finish_reason\":\"stop\"") != NULL);
    heg_text_free(ending);
    heg_answer_free(answer);
}

struct heard {
    char text[4096];
    volatile int32_t code;
};

static void hear(void *user, int32_t code, const char *text, size_t bytes) {
    struct heard *heard = user;
    EXPECT(strlen(text) == bytes);
    if (code == HEG_OK) {
        strncat(heard->text, text, sizeof heard->text - strlen(heard->text) - 1);
    } else {
        heard->code = code;
    }
}

/* A listener hears its answer; one that is freed on the way hears of its end all the same, and then nothing. */
static void listen(const heg_engine *engine) {
    struct heard heard = {"", HEG_OK};
    heg_answer *answer = NULL;
    EXPECT(heg_submit_to(engine, QUESTION, hear, &heard, &answer, NULL) == HEG_OK);
    const char *piece;
    EXPECT(heg_next(answer, 0, &piece, NULL, NULL) == HEG_INPUT);
    while (heard.code == HEG_OK) {
    }
    heg_answer_free(answer);
    printf("%s (%d)\n", heard.text, heard.code);
    heard.code = HEG_OK;
    EXPECT(heg_submit_to(engine, LONG_QUESTION, hear, &heard, &answer, NULL) == HEG_OK);
    heg_answer_free(answer);
    EXPECT(heard.code == HEG_END);
}

static void cancel(const heg_engine *engine) {
    heg_answer *answer = NULL;
    heg_error *error = NULL;
    char *ending = NULL;
    const char *piece;
    int32_t code;
    EXPECT(heg_submit(engine, LONG_QUESTION, &answer, &error) == HEG_OK);
    EXPECT((code = heg_ending(answer, &ending, &error)) == HEG_INPUT);
    show(code, error);
    EXPECT(heg_next(answer, -1, &piece, NULL, NULL) == HEG_OK);
    heg_cancel(answer);
    while ((code = heg_next(answer, -1, &piece, NULL, NULL)) == HEG_OK) {
    }
    EXPECT(code == HEG_END);
    EXPECT(heg_ending(answer, &ending, NULL) == HEG_OK);
    EXPECT(strstr(ending, "\"finish_reason\":\"cancelled\"") != NULL);
    heg_text_free(ending);
    heg_answer_free(answer);
}

static void refuse(const heg_engine *engine) {
    static const char *REQUESTS[] = {
        NULL,
        "\xff",
        "{\"messages\": [], \"max_token\": 3}",
        "{\"prompt\": \"a\", \"prompt_ids\": [1]}",
        "{\"prompt_ids\": [70000]}",
        "{\"prompt\": \"a\", \"temperature\": -1}",
        "{\"prompt\": \"a\", \"keep\": true}",
    };
    for (size_t i = 0; i < sizeof REQUESTS / sizeof *REQUESTS; i++) {
        heg_answer *answer = NULL;
        heg_error *error = NULL;
        int32_t code = heg_submit(engine, REQUESTS[i], &answer, &error);
        EXPECT(code == HEG_INPUT && answer == NULL);
        show(code, error);
    }
    heg_error *error = NULL;
    heg_engine *other = NULL;
    int32_t code = heg_open("no/such/file.heg", NULL, &other, &error);
    EXPECT(code == HEG_INPUT && other == NULL);
    show(code, error);
    code = heg_submit(engine, QUESTION, NULL, &error);
    show(code, error);
    char *json = NULL;
    code = heg_describe(NULL, &json, &error);
    show(code, error);
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    EXPECT(heg_abi() == HEG_ABI);
    heg_engine *engine = NULL;
    heg_error *error = NULL;
    char *json = NULL;
    size_t tokens = 0;
    int32_t code = heg_open(arguments[1], "{\"threads\": 1, \"kv_mib\": 64}", &engine, &error);
    if (code != HEG_OK) {
        show(code, error);
        return 1;
    }
    EXPECT(heg_ready(engine, &error) == HEG_OK);
    EXPECT(heg_describe(engine, &json, &error) == HEG_OK);
    EXPECT(strstr(json, "\"name\":\"tiny-agent\"") != NULL);
    heg_text_free(json);
    EXPECT(heg_count(engine, QUESTION, &tokens, &error) == HEG_OK);
    printf("%zu tokens\n", tokens);
    uint64_t flow = heg_flow_new(engine);
    EXPECT(flow == 1);
    heg_flow_end(engine, flow);
    stream(engine);
    listen(engine);
    cancel(engine);
    refuse(engine);
    EXPECT(heg_status(engine, &json, &error) == HEG_OK);
    EXPECT(strstr(json, "\"health\":\"ready\"") != NULL);
    heg_text_free(json);
    /* An answer outlives the handle of its engine. */
    heg_answer *answer = NULL;
    const char *piece;
    EXPECT(heg_submit(engine, QUESTION, &answer, NULL) == HEG_OK);
    heg_close(engine);
    while ((code = heg_next(answer, -1, &piece, NULL, NULL)) == HEG_OK) {
    }
    EXPECT(code == HEG_END);
    heg_answer_free(answer);
    /* NULL is nothing. */
    heg_close(NULL);
    heg_answer_free(NULL);
    heg_error_free(NULL);
    heg_text_free(NULL);
    heg_cancel(NULL);
    EXPECT(heg_flow_new(NULL) == 0);
    return 0;
}
