/* The first token of an answer: `first_token BUNDLE`. */
#include <heg.h>
#include <stdio.h>

static int failed(heg_error *error) {
    fprintf(stderr, "%s\n", heg_error_message(error));
    heg_error_free(error);
    return 1;
}

int main(int count, char **arguments) {
    const char *ask = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"max_tokens\": 1}";
    heg_engine *engine = NULL;
    heg_answer *answer = NULL;
    heg_error *error = NULL;
    const char *piece = NULL;
    if (count != 2) {
        return 2;
    }
    if (heg_open(arguments[1], NULL, &engine, &error) != HEG_OK) {
        return failed(error);
    }
    if (heg_submit(engine, ask, &answer, &error) != HEG_OK) {
        return failed(error);
    }
    if (heg_next(answer, -1, &piece, NULL, &error) != HEG_OK) {
        return failed(error);
    }
    puts(piece);
    heg_answer_free(answer);
    heg_close(engine);
    return 0;
}
