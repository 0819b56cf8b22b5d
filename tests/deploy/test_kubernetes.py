"""deploy/kubernetes: valid against the schemas of Kubernetes, with least rights, and stopped with time to drain."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from pydantic import ByteSize, TypeAdapter

from shardserve_server.front.auth import read_key_file
from shardserve_server.settings import Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
VARIANTS = ("cpu", "gpu", "tpu")
# tpu.yaml has an init container that goes on, which came with 1.29.
VERSIONS = ("1.29", kubernetes_validate.latest_version())


def manifests(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / file).read_text(encoding="utf-8")))


def manifest(file: str, kind: str) -> dict[str, Any]:
    [found] = [manifest for manifest in manifests(file) if manifest["kind"] == kind]
    return found


def pod(variant: str) -> dict[str, Any]:
    spec: dict[str, Any] = manifest(f"{variant}.yaml", "Deployment")["spec"]["template"]["spec"]
    return spec


def containers(variant: str) -> Iterator[dict[str, Any]]:
    yield from pod(variant).get("initContainers", [])
    yield from pod(variant)["containers"]


def front(variant: str) -> dict[str, Any]:
    [found] = pod(variant)["containers"]
    return dict(found)


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container.get("env", [])}


def bytes_of(text: str) -> int:
    return TypeAdapter(ByteSize).validate_python(re.sub(r"i$", "iB", text))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", FILES)
def test_a_manifest_is_valid(file: str, version: str) -> None:
    for found in manifests(file):
        kubernetes_validate.validate(found, version, strict=True)


def test_a_misspelt_field_is_not_valid() -> None:
    """What the test above would say of a fault."""
    broken = manifest("cpu.yaml", "Deployment")
    broken["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFileSystem"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_container_has_least_rights(variant: str) -> None:
    for container in containers(variant):
        context = {**pod(variant)["securityContext"], **container["securityContext"]}
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"]["drop"] == ["ALL"]
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "privileged" not in context
        if container["name"] == "engine":  # a shell of its own raises the limit of locked memory
            assert context["capabilities"]["add"] == ["SYS_RESOURCE"]
            assert "ports" not in container
        else:
            assert context["runAsNonRoot"] is True
            assert context["runAsUser"] == context["runAsGroup"] == 10001
            assert "add" not in context["capabilities"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_pod_takes_nothing_from_its_node_or_cluster(variant: str) -> None:
    spec = pod(variant)
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert not [volume for volume in spec["volumes"] if "hostPath" in volume]
    assert not [port for container in containers(variant) for port in container.get("ports", []) if "hostPort" in port]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_services_address_does_not_become_the_servers_port(variant: str) -> None:
    """A service of the name shardserve makes SHARDSERVE_PORT=tcp://… in every pod that does not refuse it."""
    assert manifest("common.yaml", "Service")["metadata"]["name"] == "shardserve"
    assert pod(variant)["enableServiceLinks"] is False


@pytest.mark.parametrize("variant", VARIANTS)
def test_probes_ask_the_routes_that_need_no_key(variant: str) -> None:
    container = front(variant)
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
    startup = container["startupProbe"]
    patience_s = startup["periodSeconds"] * startup["failureThreshold"]
    assert patience_s > Settings.model_fields["engine_start_timeout_s"].default


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_pod_is_given_the_time_to_finish_what_it_accepted(variant: str) -> None:
    values = environment(front(variant))
    needed_s = float(values["SHARDSERVE_DRAIN_DELAY_S"]) + float(values["SHARDSERVE_STOP_GRACE_S"])
    assert pod(variant)["terminationGracePeriodSeconds"] > needed_s


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_server_at_a_time_owns_the_devices(variant: str) -> None:
    spec = manifest(f"{variant}.yaml", "Deployment")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(("variant", "resource"), [("cpu", None), ("gpu", "nvidia.com/gpu"), ("tpu", "google.com/tpu")])
def test_one_container_asks_for_the_accelerator_and_the_pod_may_go_where_it_is(
    variant: str, resource: str | None
) -> None:
    asked = [name for found in containers(variant) for name in found["resources"]["limits"] if "/" in name]
    assert asked == ([resource] if resource else [])
    assert [toleration["key"] for toleration in pod(variant).get("tolerations", [])] == asked


def test_a_tpu_pod_names_as_many_chips_as_its_nodes_have() -> None:
    [engine] = pod("tpu")["initContainers"]
    rows, columns = pod("tpu")["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    assert engine["resources"]["limits"]["google.com/tpu"] == int(rows) * int(columns)


def test_a_tpu_engine_starts_before_the_front_and_stops_after_it() -> None:
    [engine] = pod("tpu")["initContainers"]
    assert (engine["name"], engine["restartPolicy"]) == ("engine", "Always")
    socket = environment(front("tpu"))["SHARDSERVE_ENGINE_SOCKET"]
    assert engine["command"][-1].endswith(f"exec shardserve engine --socket {socket}")


def test_a_tpu_front_and_its_engine_share_the_sockets_folder_alone() -> None:
    [engine] = pod("tpu")["initContainers"]
    mounted = [{mount["name"] for mount in found["volumeMounts"]} for found in (engine, front("tpu"))]
    assert mounted[0] & mounted[1] == {"link"}
    assert "keys" not in mounted[0]
    assert engine["securityContext"]["runAsGroup"] == pod("tpu")["securityContext"]["fsGroup"] == 10002


@pytest.mark.parametrize("variant", VARIANTS)
def test_shared_buffers_fit_into_the_containers_memory(variant: str) -> None:
    """The defaults are parts of the node's memory, which the limit of a container does not change."""
    values = environment(front(variant))
    names = ["SHARDSERVE_BUFFER_BYTES", "SHARDSERVE_PINNED_BYTES"]
    names += ["SHARDSERVE_MEMORY_BYTES"] if variant == "cpu" else []  # there the devices' memory is the host's
    assert "SHARDSERVE_SPARE_BUFFER_BYTES" in values
    assert sum(bytes_of(values[name]) for name in names) < bytes_of(front(variant)["resources"]["limits"]["memory"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_pods_settings_are_settings_of_the_server(variant: str) -> None:
    given: dict[str, Any] = {}
    for name, value in environment(front(variant)).items():
        given[name.removeprefix("SHARDSERVE_").lower()] = value
    assert given.keys() <= Settings.model_fields.keys()
    Settings(**given)


def commands() -> list[str]:
    """The lines of shell at the top of common.yaml."""
    lines = (FOLDER / "common.yaml").read_text(encoding="utf-8").partition("apiVersion")[0].splitlines()
    return [line.removeprefix("#   ") for line in lines if line.startswith("#   ")]


KUBECTL = """#!/usr/bin/env bash
printf '%s\\n' "$@" >>calls
case "$1 $2" in
    "create secret") cat "${5#--from-file=keys=}" >keys ;;
    "get secret") base64 -w 0 keys ;;
esac
"""


def test_the_key_goes_to_the_cluster_and_to_a_client_through_pipes_alone(tmp_path: Path) -> None:
    key = "aGVyZS1pcy1hLWtleS1vZi0yNC1i"
    for name, text in (("kubectl", KUBECTL), ("openssl", f"#!/usr/bin/env bash\necho {key}\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    [make] = [line for line in commands() if "create secret" in line]
    [fetch] = [line for line in commands() if "get secret" in line]
    done = subprocess.run(
        ["bash", "-euc", f'umask 077\n{make}\n{fetch}\nprintf %s "$SHARDSERVE_API_KEY"'],  # noqa: S607
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == key
    calls = (tmp_path / "calls").read_text()
    assert key not in calls
    assert "shardserve-keys" in calls
    read_key_file(tmp_path / "keys", setting="key_file")  # the server takes it as it is


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_keys_come_from_the_secret_and_are_not_for_everybody(variant: str) -> None:
    [volume] = [volume for volume in pod(variant)["volumes"] if volume["name"] == "keys"]
    [(secret, entry)] = re.findall(r"create secret generic (\S+) --from-file=(\w+)=", "\n".join(commands()))
    assert volume["secret"]["secretName"] == secret
    assert volume["secret"]["defaultMode"] & 0o337 == 0
    [mount] = [mount for mount in front(variant)["volumeMounts"] if mount["name"] == "keys"]
    assert environment(front(variant))["SHARDSERVE_KEY_FILE"] == f"{mount['mountPath']}/{entry}"


def test_no_manifest_holds_a_secret() -> None:
    assert not [file for file in FILES for found in manifests(file) if found["kind"] == "Secret"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_brings_the_claim_that_it_mounts_and_no_other(variant: str) -> None:
    """None is left waiting, or costs something, that no pod mounts."""
    mounted = [
        volume["persistentVolumeClaim"] for volume in pod(variant)["volumes"] if "persistentVolumeClaim" in volume
    ]
    made = [*manifests(f"{variant}.yaml"), *manifests("common.yaml")]
    claims = [found["metadata"]["name"] for found in made if found["kind"] == "PersistentVolumeClaim"]
    assert [claim["claimName"] for claim in mounted] == claims


def test_variants_share_a_claim_only_when_they_share_its_owner() -> None:
    owners: dict[str, set[int]] = {}
    for variant in VARIANTS:
        claim = manifest(f"{variant}.yaml", "PersistentVolumeClaim")["metadata"]["name"]
        owners.setdefault(claim, set()).add(pod(variant)["securityContext"]["fsGroup"])
    assert owners == {"shardserve-cache": {10001}, "shardserve-programs": {10002}}


def uncommented(file: str, start: str) -> str:
    """The manifests with the commented lines that begin with this one, and are not deeper than prose, made real."""
    return re.sub(rf"^( *)# ({start}.*)\n((?: *#  .*\n)*)", _real, (FOLDER / file).read_text(), flags=re.M)


def _real(match: re.Match[str]) -> str:
    rest = re.sub(r"^( *)# ", r"\1", match[3], flags=re.M)
    return f"{match[1]}{match[2]}\n{rest}"


def test_the_commented_examples_are_valid_when_they_are_made_real() -> None:
    [policy] = [
        found
        for found in yaml.safe_load_all(uncommented("common.yaml", "- namespaceSelector"))
        if found["kind"] == "NetworkPolicy"
    ]
    kubernetes_validate.validate(policy, VERSIONS[0], strict=True)
    [rule] = policy["spec"]["ingress"]
    [pods, namespaces] = rule["from"]
    assert pods == {"podSelector": {"matchLabels": {"shardserve-client": "true"}}}
    assert list(namespaces) == ["namespaceSelector"]
    [claim] = [
        found
        for found in yaml.safe_load_all(uncommented("tpu.yaml", "storageClassName"))
        if found["kind"] == "PersistentVolumeClaim"
    ]
    kubernetes_validate.validate(claim, VERSIONS[0], strict=True)
    assert claim["spec"]["storageClassName"]


def test_a_tpu_engine_has_the_shared_memory_that_compose_gives_it() -> None:
    [engine] = pod("tpu")["initContainers"]
    [mount] = [mount for mount in engine["volumeMounts"] if mount["mountPath"] == "/dev/shm"]  # noqa: S108
    [volume] = [volume for volume in pod("tpu")["volumes"] if volume["name"] == mount["name"]]
    assert volume["emptyDir"]["medium"] == "Memory"
    compose = yaml.safe_load((FOLDER.parents[1] / "docker-compose.yml").read_text(encoding="utf-8"))
    given = compose["services"]["tpu-engine"]["shm_size"].replace("gb", "Gi")
    assert volume["emptyDir"]["sizeLimit"] == given
    assert bytes_of(given) < bytes_of(engine["resources"]["limits"]["memory"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_service_and_the_policy_find_the_pod_and_its_port(variant: str) -> None:
    labels = manifest(f"{variant}.yaml", "Deployment")["spec"]["template"]["metadata"]["labels"]
    service, policy = manifest("common.yaml", "Service")["spec"], manifest("common.yaml", "NetworkPolicy")["spec"]
    assert service["type"] == "ClusterIP"
    assert service["selector"].items() <= labels.items()
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    [port] = front(variant)["ports"]
    assert port["containerPort"] == 8000
    assert [entry["targetPort"] for entry in service["ports"]] == [port["name"]]
    [rule] = policy["ingress"]
    assert [entry["port"] for entry in rule["ports"]] == [port["name"]]
    assert policy["egress"] == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_pods_image_is_the_variants(variant: str) -> None:
    assert {container["image"] for container in containers(variant)} == {f"shardserve:{variant}"}
