/* libheg: runs HEG bundles in a program of your own.

   Made of heg-runtime/capi/src/interface.rs; do not edit. Part of HEG, Apache-2.0.

   Results.   A function that returns int32_t returns HEG_OK, HEG_PENDING, HEG_END, or the code of an error. Where it has an
              `error` that is not NULL, it then puts an error there, to be freed by heg_error_free; else it leaves it alone.
              Other results are written only with HEG_OK (heg_next says what it writes).
   Texts      are UTF-8 and end with a zero. What a function takes need not stay behind the call. What it gives by `char **`
              is the caller's, to be freed by heg_text_free.
   Ownership. heg_open, heg_submit and heg_submit_to give an object that the caller frees once, by heg_close and
              heg_answer_free. A freed object must not be used again, nor freed while another thread is in a call with it.
   Threads.   Every function may be called from any thread, and several with one engine or answer at a time. One thread
              reads an answer: a call of heg_next ends the life of the piece before. After fork(), a child must not use what
              its parent opened.
   Trust.     A bundle is code, and its template and tokenizer work in this process: open what you trust (`heg pull` checks
              signatures; `verify` here only that the file is what it says). */
#ifndef HEG_H
#define HEG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32) && !defined(HEG_STATIC)
#define HEG_API __declspec(dllimport)
#else
#define HEG_API
#endif

/* The number of this interface: compare it with heg_abi(). */
#define HEG_ABI 1

#define HEG_OK 0
#define HEG_PENDING (-1)
#define HEG_END (-2)
/* What was asked: a request, options, a path. */
#define HEG_INPUT 2
/* The bundle is damaged, of another version, or does not fit this machine. */
#define HEG_INCOMPATIBLE 3
/* The machine: memory, devices, files. */
#define HEG_ENVIRONMENT 4
/* A bug of the library. */
#define HEG_BUG 70

/* An open bundle with its engine. */
typedef struct heg_engine heg_engine;
/* An answer to a request. */
typedef struct heg_answer heg_answer;
/* Why a function failed. */
typedef struct heg_error heg_error;
/* Hears an answer: see heg_submit_to. */
typedef void (*heg_listener)(void *user, int32_t code, const char *text, size_t bytes);

/* Returns the version of the library, such as "0.1.0". It is not to be freed. */
HEG_API const char *heg_version(void);

/* Returns the number of this interface: HEG_ABI of the header that the library was built with. It changes when a program
   that was built with an older header would no longer work. */
HEG_API uint32_t heg_abi(void);

/* Opens the bundle at `path` and starts its engine; kernels are still being prepared when this returns, and requests may
   be submitted at once. `options` is NULL or a JSON object: soc ("host-cpu"; a shipped machine or a .ron file), threads,
   policy, kv_mib (memory for keys and values), speculate ("off", "chain", "tree"), state_dir and state_mib (prompts that
   are kept on disk for later processes), lock_weights, verify (hash every byte now). */
HEG_API int32_t heg_open(const char *path, const char *options, heg_engine **engine, heg_error **error);

/* Waits until every kernel is ready. Nobody has to: it tells errors of kernels before the first request does. */
HEG_API int32_t heg_ready(const heg_engine *engine, heg_error **error);

/* Frees an engine; NULL is ignored. Answers that are under way go on: the engine ends with the last of them. */
HEG_API void heg_close(heg_engine *engine);

/* Tells of the model as JSON: name, architecture, weights, parameters, vocabulary, context_tokens, kv_tokens, bundle,
   fingerprint, chat, version. Free the text by heg_text_free. */
HEG_API int32_t heg_describe(const heg_engine *engine, char **json, heg_error **error);

/* Tells of the engine's state as JSON: health ("loading", "ready", "degraded", "failed") and why, requests in each phase,
   memory of keys and values, tokens since the start, kept state, kernels that run elsewhere than on their best device
   (descents). Free the text by heg_text_free. */
HEG_API int32_t heg_status(const heg_engine *engine, char **json, heg_error **error);

/* Returns the number of a new flow, for the `flow` of requests that build on each other: they run one after the other, and
   each finds the keys and values that the last one left. Returns 0 for a NULL engine, else at least 1. */
HEG_API uint64_t heg_flow_new(const heg_engine *engine);

/* Ends a flow: its memory is freed once its last request has ended. An unknown flow, and a NULL engine, are ignored. */
HEG_API void heg_flow_end(const heg_engine *engine, uint64_t flow);

/* Counts the tokens of a request's prompt without submitting it. */
HEG_API int32_t heg_count(const heg_engine *engine, const char *request, size_t *tokens, heg_error **error);

/* Submits a request and returns at once with its answer. `request` is a JSON object with one of messages (a list of objects
   with role and content), prompt (a text, no template) and prompt_ids; and, if wanted: tools, tool_choice ("auto", "none",
   "required" or a name), json_schema, reasoning_format ("auto": what the model thinks first is apart from the text; "none": in
   it), variables (of the template), max_tokens (256), stop (a list), ignore_eos, temperature (0), top_k, top_p, min_p,
   repetition_penalty, presence_penalty, frequency_penalty, seed, priority ("reactive", "proactive"), deadline_ms, flow, client
   (requests of different clients find nothing of each other), keep (whether the prompt is kept on disk), prediction,
   speculate. A field that is not known is an error. */
HEG_API int32_t heg_submit(const heg_engine *engine, const char *request, heg_answer **answer, heg_error **error);

/* Submits a request like heg_submit, whose answer `listener` hears on a thread of the library: with HEG_OK for each piece of
   text, and at last once with HEG_END and the JSON of heg_ending, or with the code and the message of an error. The text ends
   with a zero, which `bytes` does not count, and stays for the call. The listener may call any function but heg_next; it may
   free its own answer, as its last act. */
HEG_API int32_t heg_submit_to(const heg_engine *engine, const char *request, heg_listener listener, void *user, heg_answer **answer, heg_error **error);

/* Waits for the next piece of an answer's text: at most `patience_ms`, not at all for 0, for ever if it is negative. Returns
   HEG_OK with a piece, which ends with a zero that `bytes` does not count and stays until the next call or the end of the
   answer; HEG_PENDING if none has come; HEG_END when the answer is over, also if it was cancelled. `bytes` may be NULL. */
HEG_API int32_t heg_next(const heg_answer *answer, int64_t patience_ms, const char **piece, size_t *bytes, heg_error **error);

/* Asks for an answer to end soon; any thread may. Its end still comes, with finish_reason "cancelled" unless it had ended
   already. NULL is ignored. */
HEG_API void heg_cancel(const heg_answer *answer);

/* Tells of an answer that is over, as JSON: finish_reason ("stop", "length", "cancelled", "deadline", "shed", "failed"),
   text, reasoning_content (if the model thought first), token_ids, tool_calls (if tools were offered), prompt_tokens,
   reused_tokens, kept_tokens, baked_tokens (from the bundle), queued_ms, ttft_ms, decode_ms, and counts of drafts. Free the
   text by heg_text_free. */
HEG_API int32_t heg_ending(const heg_answer *answer, char **json, heg_error **error);

/* Frees an answer; NULL is ignored. If it goes on it is cancelled; if it has a listener, that has been called for the last
   time when this returns, unless the listener calls it. */
HEG_API void heg_answer_free(heg_answer *answer);

/* Returns the code of an error: what the function that gave it returned. HEG_OK for NULL. */
HEG_API int32_t heg_error_code(const heg_error *error);

/* Returns the text of an error, on one line, which stays until the error is freed. An empty text for NULL. */
HEG_API const char *heg_error_message(const heg_error *error);

/* Frees an error; NULL is ignored. */
HEG_API void heg_error_free(heg_error *error);

/* Frees a text of heg_describe, heg_status or heg_ending; NULL is ignored. */
HEG_API void heg_text_free(char *text);

#ifdef __cplusplus
}
#endif

#endif
