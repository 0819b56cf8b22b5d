# shellcheck shell=bash disable=SC2034 # the scripts read what is set here
# Options and checks of the scripts beside it, which source it. It runs on laptops, so it keeps to what bash 3.2 has (macOS).
set -euo pipefail

script=deploy/tpu-vm/$(basename "$0")
die() { printf '%s\n' "$script: $*" >&2; exit 2; }
say() { printf '%s\n' "$script: $*" >&2; }

project=${CLOUDSDK_CORE_PROJECT:-} zone=${CLOUDSDK_COMPUTE_ZONE:-} name='' tpu_api='' iap='' extra=()
host=/usr/local/lib/shardserve/shardserve-host # on the VM

# The variables are named, not replaced.
# shellcheck disable=SC2016
WHICH_HELP='  --name NAME        the VM
  --zone ZONE        default: $CLOUDSDK_COMPUTE_ZONE
  --project PROJECT  default: $CLOUDSDK_CORE_PROJECT
  --tpu-api          the VM was made by --accelerator-type, through the Cloud TPU API'
SSH_HELP="$WHICH_HELP
  --iap              reach it through Identity-Aware Proxy: no public address and no open SSH port is needed"

# parse "OPTIONS" "FLAGS" ARGUMENT...: an option has a value, a flag has none; what follows -- goes to gcloud as it is.
parse() {
    local options=" $1 " flags=" $2 " option value
    shift 2
    while [ $# -gt 0 ]; do
        option=${1%%=*}
        case $option in
            -h | --help) usage; exit 0 ;;
            --)
                [[ $flags == *' -- '* ]] || die "nothing may follow --; see --help"
                shift
                extra=("$@")
                return
                ;;
            --*) ;;
            *) die "'$1' is no option; see --help" ;;
        esac
        if [[ $flags == *" $option "* ]]; then
            [ "$option" = "$1" ] || die "$option has no value; see --help"
            value=yes
        elif [[ $options != *" $option "* ]]; then
            die "there is no option '$option'; see --help"
        elif [ "$option" != "$1" ]; then
            value=${1#*=}
        else
            [ $# -ge 2 ] || die "$option needs a value"
            value=$2
            shift
        fi
        shift
        option=${option#--}
        printf -v "${option//-/_}" '%s' "$value"
    done
}

# expect NAME VALUE FORM EXAMPLE: everything that reaches gcloud or a remote shell is held against its form first.
expect() {
    [ -n "$2" ] || die "$1 is missing, for example $1 $4"
    [[ $2 =~ $3 ]] || die "$1 '$2' is not of its form, for example $4"
}

check_which() {
    expect --name "$name" '^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$' my-tpu
    expect --zone "$zone" '^[a-z]+-[a-z]+[0-9]+-[a-z0-9]{1,6}$' us-east5-a
    expect --project "$project" '^([a-z][a-z0-9.-]{0,60}:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$' my-project-123456
    command -v gcloud >/dev/null || die "gcloud is not installed here: it is the cloud's own command line"
}

check_image() { expect --image "$1" '^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$' REGISTRY/shardserve:tpu; }
check_seconds() { expect "$1" "$2" '^[1-9][0-9]{0,5}$' 600; }
check_port() { expect "$1" "$2" '^[1-9][0-9]{0,4}$' 8000; [ "$2" -le 65535 ] || die "$1 '$2' is above 65535"; }

# The two APIs differ in the words before the verb.
vm() {
    local verb=$1
    shift
    if [ -n "$tpu_api" ]; then
        gcloud compute tpus tpu-vm "$verb" "$name" "--project=$project" "--zone=$zone" "$@"
    else
        gcloud compute instances "$verb" "$name" "--project=$project" "--zone=$zone" "$@"
    fi
}

# RUNNING, TERMINATED, READY, STOPPED …; nothing when there is no such VM. A list tells that from a gcloud that failed.
state() {
    local rows
    if [ -n "$tpu_api" ]; then
        rows=$(gcloud compute tpus tpu-vm list "--project=$project" "--zone=$zone" \
            '--format=value(name.basename(),state)') || return
    else
        rows=$(gcloud compute instances list "--project=$project" "--zones=$zone" "--filter=name=$name" \
            '--format=value(name,status)') || return
    fi
    printf '%s\n' "$rows" | awk -v name="$name" '$1 == name { print $2 }'
}

is_stopped() { case $1 in TERMINATED | STOPPED | SUSPENDED | PREEMPTED) ;; *) return 1 ;; esac; }

# ssh ARGUMENT... of gcloud. Its Cloud TPU command has the way through IAP in the alpha track alone (gcloud 528).
remote() {
    local command=(compute ssh)
    [ -z "$tpu_api" ] || command=(compute tpus tpu-vm ssh)
    if [ -n "$iap" ]; then
        [ -z "$tpu_api" ] || command=(alpha "${command[@]}")
        gcloud "${command[@]}" "$name" "--project=$project" "--zone=$zone" --tunnel-through-iap "$@"
    else
        gcloud "${command[@]}" "$name" "--project=$project" "--zone=$zone" "$@"
    fi
}

# The same options again, for the command that is to come next.
which_options() {
    printf -- '--project %s --zone %s --name %s%s%s' "$project" "$zone" "$name" "${tpu_api:+ --tpu-api}" "${iap:+ --iap}"
}
