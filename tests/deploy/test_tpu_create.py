"""`deploy/tpu-vm/create`, against a gcloud that records its calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cloud import FILES, HOST, IMAGE, PLACE, PULL, VERBS, WHICH, create, exists, laptop_stage
from .stage import DEPLOY, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return laptop_stage(tmp_path)


def test_create_makes_an_instance_of_compute_engine_without_an_account(stage: Stage) -> None:
    done = stage.run("tpu-vm/create", *WHICH, "--image", IMAGE, "--machine-type", "ct6e-standard-4t")
    assert done.status == 0
    listed, created = stage.calls()
    assert listed == [
        *"gcloud compute instances list --project=my-project-1 --zones=us-east5-a --filter=name=my-tpu".split(),
        "--format=value(name,status)",
    ]
    assert created == [
        *"gcloud compute instances create".split(),
        *PLACE,
        FILES,
        f"--metadata=shardserve-configure=ACCELERATOR=tpu IMAGE={IMAGE} STOP_GRACE_S=30",
        "--no-service-account",
        "--no-scopes",
        "--machine-type=ct6e-standard-4t",
        "--image-family=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
        "--image-project=ubuntu-os-accelerator-images",
        "--boot-disk-size=100GB",
        "--maintenance-policy=TERMINATE",
    ]
    assert done.stdout == "deploy/tpu-vm/tunnel --project my-project-1 --zone us-east5-a --name my-tpu\n"


def test_create_takes_spot_idle_time_an_account_and_more_for_gcloud(stage: Stage) -> None:
    options = "--machine-type=tpu7x-standard-4t --spot --exit-after-idle 900 --stop-grace=20 --no-public-address --iap"
    account = "puller@my-project-1.iam.example"
    status, _ = create(stage, *options.split(), "--service-account", account, "--", "--subnet=a b", "--labels=team=x")
    assert status == 0
    assert stage.calls()[1] == [
        *"gcloud compute instances create".split(),
        *PLACE,
        FILES,
        f"--metadata=shardserve-configure=ACCELERATOR=tpu IMAGE={IMAGE} STOP_GRACE_S=20 "
        "ACCOUNT_REGISTRY=registry.example EXIT_AFTER_IDLE_S=900 WHEN_IDLE=poweroff",
        f"--service-account={account}",
        PULL,
        "--machine-type=tpu7x-standard-4t",
        "--image-family=ubuntu-accel-2404-amd64-tpu-tpu7x",
        "--image-project=ubuntu-os-accelerator-images",
        "--boot-disk-size=100GB",
        "--maintenance-policy=TERMINATE",
        "--provisioning-model=SPOT",
        "--instance-termination-action=DELETE",
        "--no-address",
        "--subnet=a b",
        "--labels=team=x",
    ]


def test_create_goes_through_the_older_api_where_that_is_the_only_way(stage: Stage) -> None:
    status, _ = create(stage, "--accelerator-type", "v5litepod-4", "--spot", "--no-public-address")
    assert status == 0
    assert stage.calls() == [
        [
            *"gcloud compute tpus tpu-vm list --project=my-project-1 --zone=us-east5-a".split(),
            "--format=value(name.basename(),state)",
        ],
        [
            *"gcloud compute tpus tpu-vm create".split(),
            *PLACE,
            FILES,
            f"--metadata=shardserve-configure=ACCELERATOR=tpu IMAGE={IMAGE} STOP_GRACE_S=30",
            "--accelerator-type=v5litepod-4",
            "--version=v2-alpha-tpuv5-lite",
            "--spot",
            "--internal-ips",
        ],
    ]


@pytest.mark.parametrize("form", [("--machine-type", "ct6e-standard-4t"), ("--accelerator-type", "v6e-8")])
def test_an_account_may_pull_and_nothing_else(stage: Stage, form: tuple[str, str]) -> None:
    """The long name: gcloud hands a short one to the Cloud TPU API as it is."""
    status, stderr = create(stage, *form, "--service-account", "puller@my-project-1.iam.example")
    assert status == 0
    assert [word for word in stage.calls()[1] if word.startswith("--scopes")] == [PULL]
    assert "default account" not in stderr


def test_the_default_account_of_the_older_api_is_named_before_the_vm_has_it(stage: Stage) -> None:
    sentence = "gcloud attaches the project's default account to a VM of the Cloud TPU API"
    assert sentence in create(stage, "--accelerator-type", "v5litepod-4")[1]
    assert sentence not in create(stage, "--machine-type", "ct6e-standard-4t")[1]
    told = " ".join(stage.run("tpu-vm/create", "--help").stdout.split())
    assert "through the Cloud TPU API gcloud then attaches the project's default account" in told


@pytest.mark.parametrize(
    ("machine_type", "family"),
    [
        ("ct6e-standard-1t", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"),
        ("ct5p-hightpu-4t", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"),
        ("ct5p-hightpu-1t-tpu", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"),
        ("ct5p-hightpu-2t-tpu", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"),
        ("tpu7x-standard-4t", "ubuntu-accel-2404-amd64-tpu-tpu7x"),
    ],
)
def test_a_machine_type_has_the_boot_disk_of_its_chips(stage: Stage, machine_type: str, family: str) -> None:
    status, _ = create(stage, "--machine-type", machine_type)
    assert status == 0
    assert {f"--machine-type={machine_type}", f"--image-family={family}"} <= set(stage.calls()[1])


def test_a_machine_type_that_is_not_known_is_tried_with_a_boot_disk_that_is_named(stage: Stage) -> None:
    status, stderr = create(stage, "--machine-type", "ct9-standard-4t", "--image-family", "tpu-of-tomorrow")
    assert status == 0
    assert "'ct9-standard-4t' is no machine type that this knows; it is tried with tpu-of-tomorrow" in stderr
    assert {"--machine-type=ct9-standard-4t", "--image-family=tpu-of-tomorrow"} <= set(stage.calls()[1])


def test_help_tells_where_the_machine_types_of_a_zone_are_listed(stage: Stage) -> None:
    assert "gcloud compute machine-types list --zones ZONE" in stage.run("tpu-vm/create", "--help").stdout


@pytest.mark.parametrize("form", [("--machine-type", "ct6e-standard-4t"), ("--accelerator-type", "v6e-8")])
@pytest.mark.parametrize(
    "words",
    [
        ("--metadata=a=b",),
        ("--metadata", "a=b"),
        ("--metadata-from-file=a=b",),
        ("--labels=a=b", "--metadata-from-file", "a=b"),
        ("--flags-file", "metadata.yaml"),
        ("--flags-file=metadata.yaml",),
    ],
)
def test_nothing_that_is_given_to_gcloud_replaces_what_the_vm_runs(
    stage: Stage, form: tuple[str, str], words: tuple[str, ...]
) -> None:
    status, stderr = create(stage, *form, "--", *words)
    assert (status, stage.calls()) == (2, [])
    assert "it could replace the metadata by which the VM installs and starts the server" in stderr
    assert next(word.partition("=")[0] for word in words if word.startswith(("--metadata", "--flags"))) in stderr


@pytest.mark.parametrize("image", ["shardserve:tpu", "team/shardserve:tpu", "localhost/shardserve:tpu"])
def test_an_account_is_for_the_registry_of_the_image(stage: Stage, image: str) -> None:
    account = "--service-account=puller@my-project-1.iam.gserviceaccount.com"
    done = stage.run("tpu-vm/create", *WHICH, "--image", image, "--machine-type=ct6e-standard-4t", account)
    assert (done.status, stage.calls()) == (2, [])
    assert f"logs in to the registry of the image, and '{image}' names none" in done.stderr


def test_an_image_without_a_registry_is_sent_by_a_line_that_is_printed(stage: Stage) -> None:
    done = stage.run("tpu-vm/create", *WHICH, "--image=shardserve:tpu", "--machine-type=ct6e-standard-4t", "--iap")
    assert done.stdout.splitlines()[0] == (
        f"docker save shardserve:tpu | gzip | gcloud compute ssh {' '.join(PLACE)} --tunnel-through-iap "
        f"--command='sudo docker load && sudo {HOST} start'"
    )
    done = stage.run("tpu-vm/create", *WHICH, "--image=localhost/shardserve:tpu", "--accelerator-type=v6e-8", "--iap")
    assert "| gcloud alpha compute tpus tpu-vm ssh my-tpu " in done.stdout.splitlines()[0]


def test_create_finds_the_files_that_it_sends_and_they_fit_into_metadata(stage: Stage) -> None:
    names = [pair.partition("=")[2] for pair in FILES.removeprefix("--metadata-from-file=").split(",")]
    sizes = [(DEPLOY / "tpu-vm" / name).stat().st_size for name in names]
    assert len(sizes) == 3
    assert max(sizes) < 256 * 1024


def test_create_changes_nothing_when_the_vm_is_there(stage: Stage) -> None:
    exists(stage, "TERMINATED")
    status, stderr = create(stage, "--machine-type", "ct6e-standard-4t")
    assert (status, len(stage.calls())) == (0, 1)
    assert "my-tpu is there already (TERMINATED); nothing was changed. Start it: deploy/tpu-vm/start" in stderr


@pytest.mark.parametrize("verb", VERBS)
def test_a_gcloud_that_fails_is_no_missing_vm(stage: Stage, verb: str) -> None:
    stage.answer("gcloud", status=1, stderr="ERROR: (gcloud) no account\n")
    options = {"create": ("--image", IMAGE, "--machine-type", "ct6e-standard-4t"), "update": ("--image", IMAGE)}
    done = stage.run(f"tpu-vm/{verb}", *WHICH, *options.get(verb, ()), *(("--wait", "1") if verb == "tunnel" else ()))
    assert done.status != 0
    assert "ERROR: (gcloud) no account" in done.stderr
    assert all("list" in line or "ssh" in line for line in stage.lines())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("", "--machine-type (or --accelerator-type) is missing, for example --machine-type ct6e-standard-4t"),
        ("--machine-type n2-standard-4", "'n2-standard-4' is no machine type with TPU chips that this knows"),
        ("--machine-type ct6e-standard-16t", "'ct6e-standard-16t' is no machine type"),
        ("--machine-type n2-standard-4-tpu", "'n2-standard-4-tpu' is no machine type"),
        ("--machine-type N2_x --image-family x", "--machine-type 'N2_x' is not of its form"),
        ("--machine-type ct5lp-hightpu-4t", "through the Cloud TPU API: --accelerator-type v5litepod-4 instead"),
        ("--accelerator-type v5litepod-16", "v5litepod-16 has more than one host, and a server serves one"),
        ("--accelerator-type v4-32", "the largest with one is v4-8"),
        ("--accelerator-type v5p-16", "the largest with one is v5p-8"),
        ("--accelerator-type h100-8", "--accelerator-type 'h100-8' is not of its form, for example v5litepod-4"),
        ("--accelerator-type v6e-4 --machine-type ct6e-standard-4t", "exclude each other"),
        ("--accelerator-type v6e-4 --exit-after-idle 60", "billed until it is stopped from outside"),
        ("--accelerator-type v6e-4 --image-family x", "here it is --runtime-version"),
        ("--machine-type ct6e-standard-4t --runtime-version x", "here it is --image-family"),
        ("--machine-type ct6e-standard-4t --exit-after-idle 0", "--exit-after-idle '0' is not of its form"),
        (
            "--machine-type ct6e-standard-4t --stop-grace soon",
            "--stop-grace 'soon' is not of its form, for example 600",
        ),
        ("--machine-type ct6e-standard-4t --boot-disk-size 100GB", "--boot-disk-size '100GB' is not of its form"),
        ("--machine-type ct6e-standard-4t --service-account me", "--service-account 'me' is not of its form"),
        ("--machine-type", "--machine-type needs a value"),
        ("--spot=yes", "--spot has no value"),
        ("--key abc", "there is no option '--key'; see --help"),
        ("ct6e-standard-4t", "'ct6e-standard-4t' is no option"),
    ],
)
def test_create_refuses_what_cannot_be_meant(stage: Stage, options: str, sentence: str) -> None:
    status, stderr = create(stage, *options.split())
    assert (status, stage.calls()) == (2, [])
    assert sentence in stderr


ODD = [
    "",
    "My-TPU",
    "a b",
    "-a",
    "--yes",
    "a;touch x",
    "$(touch x)",
    "`touch x`",
    "a'b",
    'a"b',
    "a\nb",
    "a,b=c",
    "é",
    "../x",
    "a" * 64,
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("odd", ODD)
def test_odd_names_reach_neither_gcloud_nor_a_shell(stage: Stage, verb: str, odd: str) -> None:
    done = stage.run(
        f"tpu-vm/{verb}", *WHICH, f"--name={odd}", *(("--image", IMAGE) if verb in ("create", "update") else ())
    )
    assert (done.status, done.stdout, stage.calls()) == (2, "", [])
    assert done.stderr.startswith(f"deploy/tpu-vm/{verb}: --name ")
    assert not list(stage.folder.glob("x"))


@pytest.mark.parametrize("option", ["--project", "--zone", "--image"])
@pytest.mark.parametrize("odd", ODD[2:12])
def test_no_other_word_of_the_user_does_either(stage: Stage, option: str, odd: str) -> None:
    done = stage.run("tpu-vm/update", *WHICH, "--image", IMAGE, f"{option}={odd}")
    assert (done.status, stage.calls()) == (2, [])
    assert option in done.stderr
    assert not list(stage.folder.glob("x"))


def test_project_and_zone_come_from_where_gcloud_has_them(stage: Stage) -> None:
    done = stage.run("tpu-vm/start", "--name", "my-tpu")
    assert (done.status, "--zone is missing, for example --zone us-east5-a" in done.stderr) == (2, True)
    exists(stage, "TERMINATED")
    place = {"CLOUDSDK_CORE_PROJECT": "my-project-1", "CLOUDSDK_COMPUTE_ZONE": "us-east5-a"}
    assert stage.run("tpu-vm/start", "--name", "my-tpu", **place).status == 0
    assert stage.calls()[1] == ["gcloud", "compute", "instances", "start", *PLACE]


def test_a_missing_gcloud_is_named(tmp_path: Path) -> None:
    done = Stage(tmp_path / "stage", ()).run("tpu-vm/stop", *WHICH)
    assert done.status == 2
    assert "gcloud is not installed here" in done.stderr
