#!/bin/sh
# The same without Python: awk fits a line by gradient descent, one process for each step, so that the shell handles
# signals between steps. Usage: train.sh [CHECKPOINT_DIR] [STEPS] [STEP_SECONDS]
# It prints `step=12 loss=0.123456`, writes DIR/ckpt-00000010.json at every fifth step, resumes, and saves on SIGTERM.
set -eu
dir=${1:-${TRAINIT_CHECKPOINT_DIR:-checkpoints}} steps=${2:-120} pause=${3:-${STEP_SECONDS:-0.5}}
mkdir -p "$dir"
stop=
trap 'stop=yes' TERM

newest=${TRAINIT_RESUME_FROM:-$(find "$dir" -maxdepth 1 -name 'ckpt-*.json' | sort | tail -n 1)}
step=0 w=0 b=0
if [ -n "$newest" ]; then
    # {"step":10,"w":1.5,"b":0.25}
    IFS=,: read -r _ step _ w _ b <<LINE
$(tr -d '{}"' <"$newest")
LINE
fi
echo "start resume_step=$step"

save() {
    name=$(printf 'ckpt-%08d.json' "$step")
    printf '{"step":%d,"w":%s,"b":%s}' "$step" "$w" "$b" >"$dir/$name.tmp"
    sync "$dir/$name.tmp" 2>/dev/null || true
    mv "$dir/$name.tmp" "$dir/$name"
}

while [ "$step" -lt "$steps" ]; do
    # y = 3x + 2 on a fixed grid
    set -- $(awk -v w="$w" -v b="$b" 'BEGIN {
        for (i = -50; i <= 50; i++) { x = i / 50; e = w * x + b - (3 * x + 2); l += e * e; gw += e * x; gb += e }
        printf "%.9f %.9f %.6f", w - 0.4 * gw / 101, b - 0.4 * gb / 101, l / 101 }')
    w=$1 b=$2 step=$((step + 1))
    echo "step=$step loss=$3"
    if [ -n "$stop" ] || [ $((step % 5)) = 0 ] || [ "$step" = "$steps" ]; then save; fi
    if [ -n "$stop" ]; then echo "stopped at step=$step"; exit 0; fi
    sleep "$pause"
done
echo "done step=$step"
