#!/bin/bash
# Measures HEG on a machine that cannot build it: run.sh FILE [STEP...] runs all steps, or those named, each within its time,
# and writes lines of JSON to FILE as it goes. Made by `cargo xtask lent pack`, read by `cargo xtask lent read FILE`.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
wanted=" $* "
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export here work HEG_BUNDLES=$work/bundles HEG_CACHE_DIR=$work/cache
mkdir -p "$HEG_BUNDLES" "$HEG_CACHE_DIR"
if compgen -G "$here/loader/*.deb" >"$work/debs"; then
    while read -r deb; do dpkg -x "$deb" "$work/loader"; done <"$work/debs"
    LD_LIBRARY_PATH=$(dirname "$(find "$work/loader" -name 'libvulkan.so.1' | head -1)"):${LD_LIBRARY_PATH-}
    export LD_LIBRARY_PATH
    # Drivers that were mounted rather than installed.
    [ "$(id -u)" != 0 ] || ldconfig
fi
export HEG_REQUIRE_GPU=1

note() { printf '%s\n' "$1" >>"$out"; }

# step NAME SECONDS COMMAND...: its lines of JSON, then how it ended. What it says beside them goes to standard error.
step() {
    local name=$1 limit=$2 begin=$SECONDS status
    shift 2
    if [ "$wanted" != "  " ] && [ "${wanted/ $name /}" = "$wanted" ]; then return; fi
    timeout "$limit" bash -c '"$@"' step "$@" >"$work/said" 2>"$work/log"
    status=$?
    grep '^{' "$work/said" >>"$out"
    grep -v '^{' "$work/said" >&2
    tail -n 5 "$work/log" >&2
    note "{\"step\":\"end\",\"name\":\"$name\",\"status\":$status,\"seconds\":$((SECONDS - begin))}"
}

# A model's bundle from a folder of weights.
compile() { "$here/hegc" compile "$1" --npu off -o "$work/$2.heg"; }

# Figures of a bundle on a SoC, in one line.
bench() {
    local model=$1 soc=$2 figures
    shift 2
    figures=$(${on-} "$here/heg" bench "$work/$model.heg" --soc "$soc" --json "$@") || return
    printf '{"step":"model","model":"%s","soc":"%s","figures":%s}\n' "$model" "$(basename "$soc" .ron)" "$figures"
}

# Whether scores of a text are the same, digit by digit, on the GPU and on the CPU.
bits() {
    local model=$1 text=$2 gpu cpu equal=false
    gpu=$("$here/heg" score "$work/$model.heg" --soc host-gpu --text "$text" --rows both --json) || return
    cpu=$("$here/heg" score "$work/$model.heg" --soc host-cpu --text "$text" --rows both --json) || return
    if [ "$gpu" = "$cpu" ]; then equal=true; fi
    printf '{"step":"bits","model":"%s","equal":%s,"gpu":%s,"cpu":%s}\n' "$model" "$equal" "$gpu" "$cpu"
}

# The CPU programs with some threads, on as many cores: what merely reads the weights has no more.
cpu() {
    local on="taskset -c 0-$(($2 - 1))"
    sed "s/programs: (/programs: (threads: $2, /; s/name: \"host-cpu\"/name: \"host-cpu-$2\"/" >"$work/host-cpu-$2.ron" "$here/host-cpu.ron"
    bench "$1" "$work/host-cpu-$2.ron"
}

# A model of published shapes, in some forms of weights.
synth() {
    local like=$1 name=$2 form
    shift 2
    "$here/hegc" synth --like "$like" -o "$work/folder" || return
    for form in "$@"; do
        "$here/hegc" compile "$work/folder" --npu off --weights "$form" -o "$work/$name-$form.heg" || return
    done
    mv "$work/folder/config.json" "$work/$name.json"
    rm -r "$work/folder"
}

# llama-bench, if it was packed, on noise of the same shapes: llama MODEL DEVICE ARGUMENTS...
llama() {
    local model=$1 device=$2
    shift 2
    [ -x "$here/llama-bench" ] || return 0
    [ -f "$work/$model.gguf" ] || python3 "$here/gguf_model.py" "$work/$model.json" "$work/$model.gguf" || return
    ${on-} "$here/llama-bench" -m "$work/$model.gguf" -p 512 -n 64 -r 3 -fa 0,1 -o jsonl "$@" >"$work/llama" || return
    while read -r figures; do
        printf '{"step":"llama","model":"%s","on":"%s","figures":%s}\n' "$model" "$device" "$figures"
    done <"$work/llama"
}

# The same on cores alone.
llama_cpu() {
    local on="taskset -c 0-$(($2 - 1))"
    llama "$1" "$2 threads" -dev none -ngl 0 -t "$2"
}

machine() {
    printf '{"step":"machine","cpu":"%s","processors":%s,"date":"%s"}\n' \
        "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)" "$(nproc)" "$(date -u +%F)"
}

export -f compile bench bits cpu synth llama llama_cpu machine
head -c 1500 "$here/text.txt" >"$work/short.txt"
step machine 10 machine
step tests 150 "$here/gpu-tests" --test-threads 4
step measure 200 "$here/measure"
step compile-tiny 60 compile "$here/tiny-agent" tiny-agent
step bits-tiny 120 bits tiny-agent "$work/short.txt"
step gpu-tiny 60 bench tiny-agent host-gpu --prefill 900,512 --decode 900
step synth-1b 200 synth llama-3.2-1b llama-1b w8a16 w4a16
step gpu-1b 90 bench llama-1b-w8a16 host-gpu --prefill 4096,512 --decode 512
step gpu-1b-w4 90 bench llama-1b-w4a16 host-gpu --prefill 4096,512 --decode 512
for threads in 16 8 4 2 1; do
    step "cpu-tiny-$threads" 30 cpu tiny-agent $threads
    step "cpu-1b-$threads" 60 cpu llama-1b-w8a16 $threads
    step "llama-1b-$threads" 90 llama_cpu llama-1b $threads
done
step llama-1b-gpu 120 llama llama-1b GPU -ngl 99
step synth-8b 300 synth llama-3.1-8b llama-8b w8a16
step gpu-8b 120 bench llama-8b-w8a16 host-gpu --prefill 2048,512 --decode 128
step llama-8b-gpu 180 llama llama-8b GPU -ngl 99
step cpu-8b-16 120 cpu llama-8b-w8a16 16
step llama-8b-16 150 llama_cpu llama-8b 16
