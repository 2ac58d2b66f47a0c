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
