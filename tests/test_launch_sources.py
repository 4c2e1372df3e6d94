"""Launch files as settings: shell scripts, documents and logs, with their places; nothing is executed."""

import re
from contextlib import suppress
from pathlib import Path

import pytest

from gpuscale.errors import InputError
from gpuscale.launch.settings import Reading
from gpuscale.launch.sources import launches


def commands(tmp_path, text, **variables):
    """Return what the commands of a script launch."""
    script = tmp_path / "run.sh"
    script.write_text(text)
    return [launch.sources[-1] for launch in launches([script], variables)]


def values(source):
    return {name: one.value for name, one in source.settings.items()}


def settings(tmp_path, text, **variables):
    """Return the settings of the one command of a script."""
    (source,) = commands(tmp_path, text, **variables)
    return values(source)


FOLLOWED = [
    ('i=0; while [ $i -lt 3 ]; do A+=" -x$i $i"; i=$((i+1)); done\npython t.py $A', {"x0": "0", "x1": "1", "x2": "2"}),
    ("n=1; until [ $n -ge 8 ]; do n=$((n*2)); done\npython t.py --n $n", {"n": "8"}),
    ("i=0; while true; do ((++i)); if [ $i -eq 4 ]; then break; fi; done\npython t.py --n $i", {"n": "4"}),
    ("i=5; while (( i-- > 2 )); do L+=$i; done\npython t.py --l $L --i $i", {"l": "432", "i": "1"}),
    ("S=0; for i in 1 2 3; do S=$((S+i)); done\npython t.py --n $S --i $i", {"n": "6", "i": "3"}),
    ("for ((i=0, j=8; i<j; i++, j--)); do :; done\npython t.py --i $i --j $j", {"i": "4", "j": "4"}),
    ('H="n1 n2 n3"; c=0; for h in $H; do ((c++)); done\npython t.py --n $c', {"n": "3"}),
    ("for i in {0..8..4} a{b,c}d; do L+=,$i; done\npython t.py --l ${L#,} --b x{y,z}",
     {"l": "0,4,8,abd,acd", "b": ["xy", "xz"]}),
    ("for i in $(seq 0 2 6); do L+=,$i; done\npython t.py --l ${L#,}", {"l": "0,2,4,6"}),
    ("N=0; for i in 1 2; do for j in a b; do [ $j = b ] && continue 2; ((N++)); done; done\npython t.py --n $N",
     {"n": "2"}),
    ("N=0; while read -r a b; do N=$((N+b)); done < <(printf 'x 1\\ny 2\\n')\npython t.py --n $N", {"n": "3"}),
    ("i=3; while ((i--)); do :; done\npython t.py --i $i", {"i": "-1"}),
    ("N=0; while read x; do [ -z $x ] && continue; N=$((N+1)); done <<E\na\n\nb\nE\npython t.py --n $N", {"n": "2"}),
    ("N=0; echo 3 | while read x; do N=$x; done\npython t.py --n $N", {"n": "0"}),
    ("while false; do X=1; done\npython t.py --x ${X:-0}", {"x": "0"}),
    ("f() { local x=3; y=4; }\nx=1; f\npython t.py --x $x --y $y", {"x": "1", "y": "4"}),
    ("f() { local x=3; g; }\ng() { X=$x; x=7; }\nx=1; f\npython t.py --x $x --y $X", {"x": "1", "y": "3"}),
    ("f() { declare -a A=(1 2); typeset -g N=${#A[@]}; }\nA=9; f\npython t.py --a $A --n $N", {"a": "9", "n": "2"}),
    ("f() { local -n to=$1; to=7; }\nf OUT\npython t.py --x $OUT", {"x": "7"}),
    ("f() (\nX=5\n)\nX=1; f; (X=2); X=3 &\npython t.py --x $X", {"x": "1"}),
    ("f() { [ $1 -gt 4 ] && return 0; return 3; }\nf 8 && A=1; f 2 || B=$?\npython t.py --a $A --b $B",
     {"a": "1", "b": "3"}),
    ("f() { if [ $1 = 7b ]; then echo 1; else echo 8; fi; }\npython t.py --tp $(f 70b)", {"tp": "8"}),
    ("python t.py --x 1 $([[ a == b ]] && echo --flag || echo --other)", {"x": "1", "other": True}),
    ("case abc in a*) X=1 ;& b*) Y=2 ;; c*) Y=3 ;; esac\npython t.py --x $X --y $Y", {"x": "1", "y": "2"}),
    ("case abc in a*) X=1 ;;& *c) Y=2 ;; *) Y=3 ;; esac\npython t.py --x $X --y $Y", {"x": "1", "y": "2"}),
    ('X=; python t.py --a "${X-3}" --b "${X:-3}" --c ${X+set}', {"a": "", "b": "3", "c": "set"}),
    ("X=a/b/a\npython t.py --a ${X/#a/d} --b ${X/%a/e} --c ${X//[^a]/} --d ${X^}",
     {"a": "d/b/a", "b": "a/b/e", "c": "aa", "d": "A/b/a"}),
    ("A=(x y z); A[1]=w; A[5]=q; unset A[0]\npython t.py --a ${A[@]} --i ${!A[@]}",
     {"a": ["w", "z", "q"], "i": ["1", "2", "5"]}),
    ("x=3; python t.py --a $((x++)) --b $((++x)) --c $((x*=2)) --d $((2**3**2)) --e $((010+0x10))",
     {"a": "3", "b": "5", "c": "10", "d": "512", "e": "24"}),
    ("x=1; ((0 && x++)); ((1 ? (y=2) : (y=3)))\npython t.py --x $x --y $y", {"x": "1", "y": "2"}),
    ("D=0,1,2; IFS=,; A=($D); unset IFS; read a b <<< '1:2 3 4'\npython t.py --n ${#A[@]} --a $a --b $b",
     {"n": "3", "a": "1:2", "b": ["3", "4"]}),
    ("x=abc; [ $x == a* ] && y=1 || y=2; [[ $x == a* ]] && z=1\npython t.py --y $y --z $z", {"y": "2", "z": "1"}),
    ("{ echo 8; echo 9; } > f; echo no >&2; mapfile -t A < f\npython t.py --n ${#A[@]} --b ${A[1]}",
     {"n": "2", "b": "9"}),
    ("python t.py --a 1 `# of the model` --b 2 \\\n  `# more` \\\n  --c 3", {"a": "1", "b": "2", "c": "3"}),
    ("A=1; f() { B=$A; }; A=3 f; A=2 python t.py --b $B --a $A", {"b": "3", "a": "1"}),
    ("p=9; f() { local t=${1:-2} p=$p; echo $t-$p; }\npython t.py --a $(f 4)", {"a": "4-9"}),
    ("(exit 3); A=$?; X=$(exit 2); B=$?; true | false; C=$?\npython t.py --a $A --b $B --c $C",
     {"a": "3", "b": "2", "c": "1"}),
    ("A=(ab cb); python t.py --a ${A[@]/#/x} --b ${A[@]%b} --c ${A[@]: -1} --d ${#A[1]}",
     {"a": ["xab", "xcb"], "b": ["a", "c"], "c": "cb", "d": "2"}),
    ("n=1; X=hello; set -- a b c\npython t.py --a ${X:n:2} --b ${X: -2} --c ${@:2:1} --d ${!#}",
     {"a": "el", "b": "lo", "c": "b", "d": "c"}),
    ("[[ llama-70b =~ ([0-9]+)b$ ]] && N=${BASH_REMATCH[1]}; [[ a < b ]] && M=1; [ 08 -eq 8 ] && K=1\n"
     "python t.py --n $N --m $M --k $K", {"n": "70", "m": "1", "k": "1"}),
    ("X=$(echo Llama-2 | tr A-Z a-z | sed 's/-.*//'); Y=$(echo v=3 | sed -n 's/v=\\(.*\\)/<\\1>/p')\n"
     "python t.py --x $X --y $Y", {"x": "llama", "y": "<3>"}),
    ("printf 'a: 1\\nb: 2\\n' > c; sed -i -e 's/^a: .*/a: 8/; /^b/d' -e '1a\\ c: 3' c\npython t.py --x $(cat c)",
     {"x": ["a:", "8", "c:", "3"]}),
    ("X=$(seq 0 3 | tr '\\n' , | sed -E 's/(,)$/;/;2p')\npython t.py --x $X --y $'a\\'b'",
     {"x": "0,1,2,3;", "y": "a'b"}),
    ("echo 'N=$1' > e.sh; set -- 5; . ./e.sh 7\npython t.py --n $N --m $1", {"n": "7", "m": "5"}),
    ("IFS=:, read -r A B C <<< ' 1:2 3, 4 ,5 '; read D E F <<< '  6   7'\n"
     "python t.py --a $A --b $B --c $C --d $D --e $E$F",
     {"a": "1", "b": ["2", "3"], "c": ["4", ",5"], "d": "6", "e": "7"}),
    ("set -- -t 4; while getopts t: o; do T=$OPTARG; done; getopts t: o || N=$?\npython t.py --t $T --n $N",
     {"t": "4", "n": "1"}),
    ("shopt -s nocasematch; [[ AB == a* && xAB =~ ^Xa ]] && a=1; case FOO in foo) b=2;; esac; shopt -u nocasematch\n"
     "[[ AB == a* ]] || c=3\npython t.py --a $a --b $b --c $c", {"a": "1", "b": "2", "c": "3"}),
    ("shopt -s extglob\nv=aaab; [[ $v == +(a|b) && $v == !(aaa) && ab12 == ?(ab)+([0-9]) ]] && a=1\n"
     "case $v in @(c|d*)) b=1;; @(a*|x)) b=2;; esac; python t.py --a $a --b $b --c ${v##+(a)} --d ${v/+(a)/c}",
     {"a": "1", "b": "2", "c": "b", "d": "cb"}),
    ("set -o pipefail; false | true; a=$?; set +o pipefail; false | true; b=$?; let 'c=0' || d=4\n"
     "python t.py --a $a --b $b --d $d", {"a": "1", "b": "0", "d": "4"}),
    ("declare -l x=AB; declare -u y; y=${x}c; z=De; python t.py --x $x --y $y --z ${z@U} --s $(seq -s, -w 9 10)",
     {"x": "ab", "y": "ABC", "z": "DE", "s": "09,10"}),
    ("n=0; while [ $n -lt 4 ]; do n=$((n+1)); python t.py --x 1; [ $n = 1 ] && break; done", {"x": "1"}),
]  # fmt: skip
"""Statements as bash follows them: each value is bash's own."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "python t.py --tp 8 --sp --lr=1e-4 --betas 0.9 0.95",
            {"tp": "8", "sp": True, "lr": "1e-4", "betas": ["0.9", "0.95"]},
        ),
        ("TP=8\npython t.py --tp-size $TP", {"tp_size": "8"}),
        ("TP=${TP:-8}\npython t.py --tp $TP", {"tp": "8"}),
        ("python t.py --tp ${TP:=4} --pp ${TP}", {"tp": "4", "pp": "4"}),
        (': "${TP:=4}"\npython t.py --tp $TP', {"tp": "4"}),
        ("A=2; B=$((A*4 + 1))\npython t.py --n $B --m $((B%4))", {"n": "9", "m": "1"}),
        ("python t.py --n=$((-7/2)) --m=$((-7%2)) --k=$((1+2<<3))", {"n": "-3", "m": "-1", "k": "24"}),
        ("A=3\n((A++))\nlet B=A*2\npython t.py --n $B", {"n": "8"}),
        ('N=$(expr 4 \\* 8); M=$(echo "2 * 3" | bc)\npython t.py --n $N --m $M', {"n": "32", "m": "6"}),
        (
            'ARGS=(--tp 8 "--fp8-format hybrid")\nARGS+=(--pp 2)\npython t.py ${ARGS[@]}',
            {"tp": "8", "fp8_format": "hybrid", "pp": "2"},
        ),
        (
            'ARGS=(\n --tp 8 # two\n # --pp 4\n --split "99 1"\n)\npython t.py "${ARGS[@]}"',
            {"tp": "8", "split": "99 1"},
        ),
        (
            'A="--tp 8 \\\n  --pp 2"\nA="$A --cp 4"\nA+=" --ep 2"\npython t.py $A',
            {"tp": "8", "pp": "2", "cp": "4", "ep": "2"},
        ),
        (
            "S=7B\nif [ $S = 7B ]; then TP=1; elif [[ $S == 70B ]]; then TP=8; else exit 1; fi\npython t.py --tp $TP",
            {"tp": "1"},
        ),
        ("S=70b\ncase $S in 7b) T=1;; 70b|70B) T=8;; *) exit 1;; esac\npython t.py --tp $T", {"tp": "8"}),
        ('if [ -z "$TP" ]; then TP=4; fi\npython t.py --tp $TP', {"tp": "4"}),
        ('if [ -n "$DEBUG" ]; then TP=1; else TP=4; fi\npython t.py --tp $TP', {"tp": "4"}),
        ("if [ -f x ]; then A=1; B=2; else A=1; B=2; fi\npython t.py --a $A --b $B", {"a": "1", "b": "2"}),
        ("run() { python t.py --tp $1 --pp ${2:-3}; }\nrun 8", {"tp": "8", "pp": "3"}),
        ("function run { local X=$1; python t.py --x $X; }\nrun 5", {"x": "5"}),
        (
            'CFG=1,4,8\nIFS=, read -r TP PP CP <<< "$CFG"\npython t.py --tp $TP --pp $PP --cp $CP',
            {"tp": "1", "pp": "4", "cp": "8"},
        ),
        ("srun -N 4 bash -c 'python t.py --tp 2'", {"tp": "2"}),
        ("export C='python t.py --tp 2 --n $N'\nN=3\nsrun --label bash -c \"$C\"", {"tp": "2", "n": "3"}),
        ("C='python t.py --tp 2'\neval $C", {"tp": "2"}),
        ('docker run --gpus all -e A=1 image:tag bash -c "cd /w && python t.py --tp 2"', {"tp": "2"}),
        ("nohup env X=1 python -u t.py --tp 2 > log 2>&1 &", {"tp": "2"}),
        (
            "python t.py model.tp=2 +train.mbs=4 ~x=1 --config-name c",
            {"model.tp": "2", "train.mbs": "4", "x": "1", "config_name": "c"},
        ),
        ("python t.py $EXTRA_ARGS --tp 2 $MORE", {"tp": "2"}),
        ('python t.py --tp 2 "$@"', {"tp": "2"}),
        ("declare -A T=([a]=1 [b]=8)\nK=b\npython t.py --tp ${T[$K]}", {"tp": "8"}),
        (
            "M=llama-70b-chat\npython t.py --a ${M%%-*} --b ${M#*-} --c ${M//-/_} --d ${M:0:5} --e ${M^^}",
            {"a": "llama", "b": "70b-chat", "c": "llama_70b_chat", "d": "llama", "e": "LLAMA-70B-CHAT"},
        ),
        ("for i in 4; do python t.py --n $i; done", {"n": "4"}),
        (
            "while [[ $# -gt 0 ]]; do case $1 in --tp) TP=$2; shift 2;; esac; done\nTP=${TP:-2}\npython t.py --tp $TP",
            {"tp": "2"},
        ),
        ("cat > go.sh <<'E'\npython t.py --tp $T\nE\nexport T=4\nbash go.sh", {"tp": "4"}),
        ("sbatch <<E\n#!/bin/bash\n#SBATCH --nodes=4\npython t.py --n \\$SLURM_NNODES\nE", {"n": "4"}),
        ("python t.py --a 1 \\\r\n  --b 2\r\n", {"a": "1", "b": "2"}),
        *FOLLOWED,
    ],
)
def test_a_script_is_followed_to_its_command(tmp_path, text, expected):
    assert settings(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("text", "program", "launcher"),
    [
        (
            "torchrun --nnodes 4 --nproc-per-node=8 t.py --x 1",
            ("torchrun", "t.py"),
            {"nnodes": "4", "nproc_per_node": "8"},
        ),
        (
            "torchrun --standalone --nproc_per_node=8 -m a.b --x 1",
            ("torchrun", "-m", "a.b"),
            {"standalone": True, "nproc_per_node": "8"},
        ),
        ("python -m torch.distributed.launch --nproc_per_node 8 t.py", ("torchrun", "t.py"), {"nproc_per_node": "8"}),
        (
            "deepspeed --num_gpus 8 --num_nodes 2 t.py --deepspeed",
            ("deepspeed", "t.py"),
            {"num_gpus": "8", "num_nodes": "2"},
        ),
        (
            "accelerate launch --config_file a.yaml --num_processes 16 t.py c.yaml",
            ("accelerate", "t.py", "c.yaml"),
            {"config_file": "a.yaml", "num_processes": "16"},
        ),
        (
            "mpirun -np 32 -x NCCL_DEBUG=INFO --mca btl tcp --bind-to none python t.py",
            ("python", "t.py"),
            {"n": "32", "bind_to": "none"},
        ),
        (
            "srun -N4 --ntasks-per-node=8 --export=ALL -l python -u t.py",
            ("python", "t.py"),
            {"nodes": "4", "ntasks_per_node": "8", "export": "ALL", "l": True},
        ),
        (
            "#SBATCH --nodes=2\n#SBATCH --gres=gpu:h100:8\nsrun python t.py",
            ("python", "t.py"),
            {"nodes": "2", "gres": "gpu:h100:8", "gpus_per_node": "8"},
        ),
        (
            "cat > j.sh <<'E'\n#SBATCH --nodes 1\n#SBATCH --gpus-per-node 4\nsrun python t.py\nE\nsbatch -N 64 j.sh",
            ("python", "t.py"),
            {"nodes": "64", "gpus_per_node": "4"},
        ),
        (
            "srun torchrun --nnodes 2 --nproc_per_node 4 t.py",
            ("torchrun", "t.py"),
            {"nnodes": "2", "nproc_per_node": "4"},
        ),
    ],
)
def test_launchers_are_told_from_what_they_launch(tmp_path, text, program, launcher):
    (source,) = commands(tmp_path, text)
    assert source.program == program
    assert {name: one.value for name, one in source.launcher.items()} == launcher


def test_the_environment_is_what_is_exported_or_stands_before_the_command(tmp_path):
    (source,) = commands(tmp_path, "export A=1\nB=2\nC=3 python t.py --x 1\n")
    assert {name: one.value for name, one in source.environment.items()} == {"A": "1", "C": "3"}
    assert source.environment["A"].line == 1


@pytest.mark.parametrize(
    ("text", "value", "why"),
    [
        ("python t.py --tp $TP --x 1", "${TP}", "is given no value"),
        ("python t.py --tp ${TP:?give it} --x 1", "${TP}", "has to be given"),
        ("T=$1\npython t.py --tp $T --x 1", "${1}", "is an argument of the script"),
        (
            "if [ -f x ]; then T=1; else T=8; fi\npython t.py --tp $T --x 1",
            "${T}",
            "is 1 or 8, by a condition that is not known",
        ),
        (
            "if [ $1 = a ]; then A=(--tp 1); else A=(--tp 8); fi\npython t.py ${A[@]} --x 1",
            "${1}",
            "decides what is set",
        ),
        ("for T in 1 2 4; do python t.py --tp $T --x 1; done", "${T}", "takes several values in a loop"),
        ("for T in 1 2; do python t.py --tp $T --x 1; done", "${T}", "takes several values in a loop"),
        (
            "for T in 1 2; do if [ $T -eq 1 ]; then M=x-b; else M=x-a; fi; python t.py --tp $M --x 1; done",
            "${T}",
            "takes several values in a loop",
        ),
        ("for ((T=1; T<=2; T++)); do python t.py --tp $T --x 1; done", "${T}", "takes several values in a loop"),
        (
            "T=1; while [ $T -lt 9 ]; do python t.py --tp $T --x 1; T=$((T*2)); done",
            "${T}",
            "takes several values in a",
        ),
        (
            "T=1; while [ ! -f x ]; do T=$((T*2)); done\npython t.py --tp $T --x 1",
            "${T}",
            "takes several values in a loop",
        ),
        ("T=1; while ((T)); do ((T++)); done\npython t.py --tp $T --x 1", "${T}", "takes several values in a loop"),
        ("T=0; for i in $HOSTS; do ((T++)); done\npython t.py --tp $T --x 1", "${T}", "takes several values in a loop"),
        ("f() { if [ -f x ]; then T=1; return; fi; T=8; }\nf\npython t.py --tp $T --x 1", "${T}", "8 or 1"),
        ("T=1; for i in 1 2; do [ -f x ] && break; T=4; done\npython t.py --tp $T --x 1", "${T}", "4 or 1"),
        ("T=1; grep -q x x.txt && T=8\npython t.py --tp $T --x 1", "${T}", "is 8 or 1"),
        ("T=$(nvidia-smi -L | wc -l)\npython t.py --tp $T --x 1", "${T}", "is the output of a command"),
        (
            "T=$(echo \"--tp $TP\" | tr '\\n' ' ' | sed 's/  \\+/ /g')\npython t.py $T --x 1",
            "${TP}",
            "is given no value",
        ),
        ("A=$B\nC=$((A * 2))\npython t.py --tp $C --x 1", "${B}", "is given no value"),
    ],
)
def test_a_variable_without_a_value_stands_by_its_name_with_the_reason(tmp_path, text, value, why):
    (source,) = commands(tmp_path, text)
    assert source.settings["tp"].value == value
    assert why in source.settings["tp"].why
    name = value.strip("${}")
    assert settings(tmp_path, text, **{name: "a" if name == "1" and "[" in text else "4"})["tp"] in {
        "4",
        "8",
        "1",
        "x-a",
    }


def test_a_variable_of_a_loop_is_offered_what_the_loop_goes_over(tmp_path):
    text = "for C in 2,1 4,2; do if [ $C = 9 ]; then X=3; fi; IFS=, read A T <<< $C; python t.py --tp $T --x 1; done"
    (source,) = commands(tmp_path, text)
    assert (source.settings["tp"].value, source.settings["tp"].choices) == ("${C}", ("2,1", "4,2"))


OPTIONS = {
    "a `case` over them": (
        "while [[ $# -gt 0 ]]; do\ncase $1 in --tp) TP=$2; shift 2;; --pp=*) PP=${1#*=}; shift;; *) shift;; esac\ndone"
    ),
    "getopts": "while getopts t:p: o; do case $o in t) TP=$OPTARG;; p) PP=$OPTARG;; esac; done",
    "getopt": (
        'A=$(getopt -o x --long tp:,pp: -- "$@")\neval set -- "$A"\n'
        "while true; do case $1 in --tp) TP=$2; shift 2;; --pp) PP=$2; shift 2;; --) shift; break;; esac; done"
    ),
    "a `for` over them": "for a in \"$@\"; do case $a in tp=*) TP=${a#tp=};; pp=*) PP=${a#*=};; esac; done",
    "a function": 'main() { TP=$1; shift; PP=$1; }\nmain "$@"',
    "their number": 'if [ $# -ne 2 ]; then exit 1; fi\nTP=$1 PP=${2:-9}; N=$#',
    "an array": 'A=("$@")\nTP=${A[0]}\nPP=${A[1]}',
    "another script": (
        "cat > go.sh <<'E'\nexport TP=$1 PP=$2\n. ./in.sh\nE\n"
        "echo 'python t.py --tp $TP --pp $PP --x 1' > in.sh\nbash go.sh $*"
    ),
}  # fmt: skip
GIVEN = {
    "a `case` over them": "--tp 4 --pp=2",
    "getopts": "-t4 -p 2",
    "getopt": "--tp=4 --pp 2",
    "a `for` over them": "pp=2 tp=4",
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_arguments_of_a_script_are_given_in_one_text(tmp_path, kind):
    text = OPTIONS[kind] + ("" if kind == "another script" else "\npython t.py --tp $TP --pp $PP --x 1")
    assert settings(tmp_path, text, **{"@": GIVEN.get(kind, "4 2")}) == {"tp": "4", "pp": "2", "x": "1"}
    (open_,) = commands(tmp_path, text)
    assert all(open_.settings[name].value is not True and "$" in open_.settings[name].value for name in ("tp", "pp")
               if kind != "their number" or name == "tp")  # fmt: skip


def test_arguments_that_nobody_gave_keep_their_numbers(tmp_path):
    text = 'f() { shift; python t.py --a $1 --b $2 --c ${3:-7}; }\nshift\nf "$@"'
    assert settings(tmp_path, text) == {"a": "${3}", "b": "${4}", "c": "7"}
    assert settings(tmp_path, text, **{"3": "x"}) == {"a": "x", "b": "${4}", "c": "7"}
    with pytest.raises(InputError, match="quotation"):
        settings(tmp_path, text, **{"@": "'x"})


def test_a_given_variable_holds_whatever_the_script_assigns(tmp_path):
    assert settings(tmp_path, "TP=8\npython t.py --tp $TP --x 1", TP="2")["tp"] == "2"


def test_values_know_where_they_stand(tmp_path):
    text = "TP=8\nARGS=(\n  --tensor-parallel $TP\n  --pp 4\n)\npython t.py ${ARGS[@]}\n"
    (source,) = commands(tmp_path, text)
    tp, pp = source.settings["tensor_parallel"], source.settings["pp"]
    assert (tp.line, tp.text, tp.span[1:]) == (3, "--tensor-parallel $TP (8)", (1, 3, 4))
    assert (pp.line, pp.text, pp.span[1:]) == (4, "--pp 4", (4, 7, 8))


def test_a_file_that_the_script_writes_is_read_with_the_lines_of_the_script(tmp_path):
    text = 'Z=3\ncat <<E > ds.json\n{"zero": {"stage": $Z}}\nE\ndeepspeed t.py --deepspeed ds.json --x 1\n'
    (tmp_path / "run.sh").write_text(text)
    (launch,) = launches([tmp_path / "run.sh"], {})
    stage = launch.sources[0].settings["zero.stage"]
    assert (stage.value, stage.line, stage.span[1:]) == (3, 3, (1, 2, 3))


def test_a_template_filled_by_sed_is_read(tmp_path):
    (tmp_path / "t.json").write_text('{"zero": {"stage": ZERO}, "mbs": MBS}')
    text = (
        'sed "s/ZERO/2/" t.json | sed "s/MBS/${MBS:-4}/" > ds.json\ndeepspeed t.py --deepspeed_config ds.json --x 1\n'
    )
    (tmp_path / "run.sh").write_text(text)
    (launch,) = launches([tmp_path / "run.sh"], {})
    assert values(launch.sources[0]) == {"zero.stage": 2, "mbs": 4}


def test_a_sourced_file_is_followed_and_one_that_is_not_here_is_named(tmp_path):
    (tmp_path / "conf.sh").write_text("TP=8\n")
    assert settings(tmp_path, 'source "$(dirname "$0")/conf.sh"\npython t.py --tp $TP --x 1')["tp"] == "8"
    (source,) = commands(tmp_path, ". ./other.sh\npython t.py --tp $TP --x 1")
    assert "other.sh" in source.settings["tp"].why


def test_an_exit_before_every_command_is_said_with_what_it_hangs_on(tmp_path):
    with pytest.raises(InputError, match="ends here before any command") as caught:
        commands(tmp_path, "echo no\nexit 1\npython t.py --x 1")
    assert caught.value.place.endswith("run.sh:2")
    (source,) = commands(tmp_path, 'TP=8 IMAGE=""\nif [ -z "$IMAGE" ]; then exit 1; fi\npython t.py --x $IMAGE --y 1')
    assert source.settings["x"].why == "has to be given"
    assert any("taken for given" in one.meaning for one in source.assumed)


@pytest.mark.parametrize(
    "text",
    [
        "if true; then\npython t.py",
        "A=(1 2",
        "x ) y",
        "case a in",
        "[[ a",
        'echo "a',
        "{{ job }} (",
        "f() {",
        "a | | b",
        "<",
        "((",
        "$((1",
        "`",
    ],
)
def test_what_is_no_script_is_refused_or_says_nothing(tmp_path, text):
    try:
        commands(tmp_path, text)
    except InputError as error:
        assert "not a shell script" in error.message or "nothing" in error.message


@pytest.mark.parametrize(
    "text",
    [
        "f() { f; }; f",
        "A=aaaaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A$A$A\n" * 12 + "python t.py --a $A --b 1",
        "(" * 5000,
        "$(" * 3000,
        "if true; then " * 300,
        "bash run.sh\n" * 3,
        "for i in 1; do " * 500,
        "x=$((" + "(" * 2000 + "1",
        "if [ $1 = a ]; then X=1\n" + "elif [ $1 = b ]; then X=2\n" * 3000 + "fi\n",
        'A="' + "${A:-" * 3000 + '"',
        "A='eval $A; eval $A'\neval $A",
    ],
)
def test_what_scripts_expand_to_is_bounded(tmp_path, text):
    with suppress(InputError):
        commands(tmp_path, text)


# --- documents


def document(tmp_path, name, text, **variables):
    path = tmp_path / name
    path.write_text(text)
    (launch,) = launches([path], variables)
    return launch.sources[-1]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "a:\n  b: 4_000_000\n  c: [1, 2]\n  d:\n  - x: 1\n", {"a.b": 4000000, "a.c": [1, 2], "a.d.0.x": 1}),
        ("a.yaml", "a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3\n", {"a.b": 1, "a.c": 2, "d.b": 1, "d.c": 3}),
        ("a.yml", '{\n\t"a": 1, # one\n\t"b": True,\n}', {"a": 1, "b": True}),
        ("a.yaml", "a: 1\n---\nb: 2\n", {"a": 1, "b": 2}),
        ("a.yaml", "m: {h: 8, f: '${multiply:4, ${.h}}', g: '${m.h}'}", {"m.h": 8, "m.f": 32, "m.g": 8}),
        ("a.yaml", "a: ${oc.env:N,4}\nb: ${X:8}\nc: ${Y:?}\nd: $E\n", {"a": "4", "b": "8", "c": "${Y:?}", "d": "$E"}),
        ("a.toml", '[a]\nb = 1 # c\n[a.d]\ne = "x"\n[[f]]\ng = 2\n', {"a.b": 1, "a.d.e": "x", "f.0.g": 2}),
        ("a.json", '{"a": {"b": [1, 2]}, "c": null, "d": [{"e": 1.5}]}', {"a.b": [1, 2], "c": None, "d.0.e": 1.5}),
    ],
)
def test_documents_are_flat_settings(tmp_path, name, text, expected):
    assert values(document(tmp_path, name, text)) == expected


def test_variables_are_given_to_documents_too(tmp_path):
    assert values(document(tmp_path, "a.yaml", "a: ${N}\nb: $M\n", N="8", M="2")) == {"a": "8", "b": "2"}
    for text in ("${oc.env:N}", "${oc.env:N,4}", "${oc.env: N, null}", "${env:N}", "${oc.decode:${oc.env:N}}"):
        assert values(document(tmp_path, "a.yaml", f"a: '{text}'\n", N="8")) == {"a": "8"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${oc.env:N,${oc.env:M,2}}", "2"), ("${oc.decode:${oc.env:N,'2'}}", "2"), ("${oc.env:N,null}", None),
        ("${oc.select:b,2}", 16), ("${oc.select:c,2}", "2"), ("${divide_floor:${b}, 3}", 5),
        ("${int_div:${b}, 3}", 5), ("${floor_div:${b}, 3}", 5), ("${div:${b}, 32}", 0.5), ("${sub:${b}, 20}", -4),
    ],
)  # fmt: skip
def test_resolvers_give_what_they_have_by_default(tmp_path, text, value):
    assert values(document(tmp_path, "a.yaml", f"a: {text}\nb: 16\n")) == {"a": value, "b": 16}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${oc.env:GBS}", "the variable GBS is given no value"), ("${env:GBS}", "the variable GBS is given no value"),
        ("${oc.decode:${oc.env:GBS}}", "the variable GBS is given no value"),
        ("${oc.env:A,${oc.env:GBS}}", "the variable GBS is given no value"),
        ("${multiply:2,${oc.env:GBS}}", "the variable GBS is given no value"),
        ("${path.choose:a,b}", "the resolver in ${path.choose:a,b} is not known"),
    ],
)  # fmt: skip
def test_what_a_document_lacks_is_named(tmp_path, text, said):
    source = document(tmp_path, "a.yaml", f"gbs: {text}\n")
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        Reading([source]).integer("gbs")
    assert caught.value.place == f"{tmp_path}/a.yaml:1: gbs"
    assert "GBS" not in said or caught.value.hint == "`var=GBS=VALUE` gives it one"


def test_a_key_given_twice_counts_the_last_time_and_says_so(tmp_path):
    source = document(tmp_path, "a.yaml", "a: 1\na: 2\n")
    assert values(source) == {"a": 2}
    assert [(one.line, one.meaning) for one in source.ignored] == [(1, "given again on line 2, which counts")]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{\n// c\n"a": 1}', "JSON has no comments"),
        ("a.json", '{"a": 1,}', "not valid JSON"),
        ("a.yaml", "a: [1", "not valid YAML"),
        ("a.yaml", "a: &x\n  b: *x\n", "alias"),
        (
            "a.yaml",
            "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 1}]\n" for i in range(9)),
            "settings",
        ),
        ("a.yaml", "[" * 100, "nested deeper"),
        ("a.json", "[" * 5000, "nested deeper"),
        ("a.toml", "a = [", "not valid TOML"),
        ("a.py", "print(1)", "no configuration of a known framework"),
        ("a.log", "nothing here", "no list of arguments"),
    ],
)
def test_broken_documents_are_refused(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message):
        document(tmp_path, name, text)


def test_hydra_takes_the_file_that_its_defaults_choose(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "7b.yaml").write_text("tp: 1\n")
    (tmp_path / "train" / "70b.yaml").write_text("tp: 8\n")
    (tmp_path / "main.yaml").write_text("defaults:\n  - train: 7b\n  - _self_\nnodes: 2\n")
    (launch,) = launches([tmp_path], {})
    assert values(launch.sources[0]) == {"train.tp": 1}
    assert launch.sources[-1].settings["nodes"].value == 2


def test_a_folder_takes_what_its_script_names_and_nothing_else(tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    (tmp_path / "other.json").write_text('{"zero_optimization": {"stage": 1}}')
    (tmp_path / "run.sh").write_text("deepspeed t.py --deepspeed ds.json --x 1\n")
    (launch,) = launches([tmp_path], {})
    assert [source.kind for source in launch.sources] == ["json", "command"]
    assert launch.sources[0].settings["zero_optimization.stage"].value == 3


def test_a_line_names_one_command_of_several(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("python a.py --x 1\npython b.py --x 2\n")
    assert len(launches([script], {})) == 2
    (launch,) = launches([Path(f"{script}:2")], {})
    assert values(launch.sources[0]) == {"x": "2"}
    with pytest.raises(InputError, match="no command starts on this line"):
        launches([Path(f"{script}:9")], {})


@pytest.mark.parametrize(
    "command",
    [
        'command: [torchrun, "--nnodes=${NODES}", t.py]\n      args: ["--tp=4", --bf16]',
        "command: [bash, -c]\n      args:\n      - |\n        T=4\n"
        "        torchrun --nnodes $NODES t.py --tp $T --bf16",
    ],
)
def test_what_a_container_starts_is_a_command(tmp_path, command):
    path = tmp_path / "job.yaml"
    path.write_text(
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n    - name: a\n"
        f"      env: [{{name: A, value: '1'}}]\n      {command}\n"
    )
    (launch,) = launches([path], {"NODES": "2"})
    (source,) = launch.sources
    assert values(source) == {"tp": "4", "bf16": True}
    assert source.launcher["nnodes"].value == "2"
    assert source.environment["A"].value == "1"


# --- logs


def test_dumped_arguments_are_read_and_the_last_list_counts(tmp_path):
    block = (
        "0: ------------------------ arguments ------------------------\n"
        "0:   tensor_model_parallel_size ...................... {}\n0:   fp16 .. True\n"
        "0: -------------------- end of arguments ---------------------\n"
    )
    source = document(tmp_path, "a.log", "using world size: 64, data\n" + block.format(2) + block.format(4))
    assert values(source) == {"tensor_model_parallel_size": "4", "fp16": "True"}
    assert source.launcher["world_size"].value == "64"


def test_a_namespace_is_read(tmp_path):
    source = document(tmp_path, "a.out", "x Namespace(tp=8, a='b, c', l=[1, 2], d=torch.float16, n=None)\n")
    assert values(source) == {"tp": "8", "a": "b, c", "l": "[1, 2]", "d": "torch.float16", "n": "None"}


@pytest.mark.parametrize(
    "text",
    [
        "cat > a.yml <<EOF\n" + "a: $b ${c}\n" * 90_000 + "EOF",
        "cat > a.yml <<'EOF'\n" + "a: b\n" * 190_000 + "EOF\nsed -i 's/a/b/g' a.yml",
        "for i in $(seq 900); do mapfile -t A < <(seq 20000); done",
        "x='" + "a" * 499 + "'; for i in $(seq 900); do [[ $x =~ [a]+[a]+b ]]; done",
        "x='" + "a" * 400 + "'; for i in $(seq 900); do echo $x | grep -q 'a[a]+[a]+b'; done",
        "x='" + "a" * 200 + "'; for i in $(seq 900); do y=$(echo $x | sed 's/[a]*[a]*b/c/'); done",
    ],
)
def test_what_takes_long_to_follow_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="too long to follow"):
        commands(tmp_path, text + "\npython t.py --x 1")
