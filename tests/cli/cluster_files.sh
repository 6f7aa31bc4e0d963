#!/bin/sh
# The job files of docs/examples: syntax, and commands that this program takes.
. "$2/tests/lib/cli.sh"
batch=$root/docs/examples/compress.sbatch job=$root/docs/examples/mpijob.yaml

# Slurm: a shell script whose #SBATCH lines stand in front of the first command, options that sbatch has.
sh -n "$batch" || fail "compress.sbatch is no shell script"
head -n 1 "$batch" | grep -q '^#!' || fail "sbatch wants #! in the first line"
awk '/^#SBATCH/ { if (begun) { print "behind a command: " $0; exit 1 }
        if ($0 !~ /^#SBATCH --(job-name|nodes|ntasks-per-node|cpus-per-task|mem|time)=[A-Za-z0-9:-]+$/ && $0 != "#SBATCH --requeue") {
            print "unknown: " $0; exit 1 } }
    !/^#/ && NF { begun = 1 }' "$batch" || fail "compress.sbatch"
# srun replaced by a script that shows what it would run: the command is accepted up to the model that is not there
mkdir "$work/bin"
cat >"$work/bin/srun" <<'END'
#!/bin/sh
while [ $# -gt 0 ]; do case $1 in --*) shift ;; *) break ;; esac; done
shift
exec "$NEURONMLP" "$@"
END
chmod +x "$work/bin/srun"
NEURONMLP=$command PATH=$work/bin:$PATH SLURM_CPUS_PER_TASK=1 sh "$batch" "$work/none" "$work/out" 0.2 >/dev/null 2>"$work/err" && fail "no model, no error"
grep -q "$work/none" "$work/err" || { cat "$work/err"; fail "compress.sbatch runs another command"; }

# Kubernetes: the fields that MPIJob v2beta1 asks for.
for line in '^apiVersion: kubeflow.org/v2beta1$' '^kind: MPIJob$' '^  name: ' '^  slotsPerWorker: 1$' '^  mpiReplicaSpecs:$' \
    '^    Launcher:$' '^    Worker:$' '^      replicas: 4$' '^            command: \[mpirun\]$'; do
    grep -q "$line" "$job" || fail "mpijob.yaml: no line $line"
done
grep -n "	" "$job" && fail "mpijob.yaml: a tab"
words=$(sed -n '/args:/,/]/p' "$job" | tr -d '[]",' | tr '\n' ' ' | sed 's/.* neuronmlp //; s|/models/|'"$work"'/none/|g')
# shellcheck disable=SC2086
"$command" $words >/dev/null 2>"$work/err" && fail "no model, no error"
grep -q "$work/none/m" "$work/err" || { cat "$work/err"; fail "mpijob.yaml runs another command: $words"; }
if python3 -c 'import yaml' 2>/dev/null; then
    python3 - "$job" <<'END' || fail "mpijob.yaml is no MPIJob"
import sys, yaml
job = yaml.safe_load(open(sys.argv[1]))
specs = job["spec"]["mpiReplicaSpecs"]
assert set(job) == {"apiVersion", "kind", "metadata", "spec"}, set(job)
assert set(job["spec"]) <= {"slotsPerWorker", "runPolicy", "mpiReplicaSpecs", "sshAuthMountPath", "mpiImplementation"}
assert set(specs) == {"Launcher", "Worker"} and specs["Launcher"]["replicas"] == 1
args = specs["Launcher"]["template"]["spec"]["containers"][0]["args"]
assert all(isinstance(a, str) for a in args), args
assert int(args[args.index("-n") + 1]) == specs["Worker"]["replicas"] * job["spec"]["slotsPerWorker"]
for spec in specs.values():
    pod = spec["template"]["spec"]
    claims = {v["name"] for v in pod.get("volumes", [])}
    for c in pod["containers"]:
        assert c["name"] and c["image"]
        assert {m["name"] for m in c.get("volumeMounts", [])} <= claims
END
else
    echo "note: no PyYAML: the structure of mpijob.yaml is tested by lines only"
fi
echo "cluster_files: ok"
