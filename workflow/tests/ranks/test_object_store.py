"""Checkpoints on a real object server: what a kill leaves of an upload, listings that lag behind, a server that ends.

The server is OpenStack Swift with its S3 interface, the client s3fs (envs/objects.txt).
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from takeback import leg_job, network, objectstore
from takeback.trainers import stores
from takeback.trainers.checkpoints import CheckpointError, Checkpoints
from takeback.trainers.settings import Settings

pytestmark = pytest.mark.skipif(
    objectstore.unavailable(Path()) is not None, reason=str(objectstore.unavailable(Path()))
)
OWN = "s3://checkpoints/run"
WEIGHTS = torch.arange(1000.0)


def put(store, name, data):
    with store.create(name) as file:
        file.write(data)


def read(store, name):
    with store.open(name) as file:
        return file.read()


def save(address, step):
    """Save as rank 0 does; returns the checkpoint's name."""
    Checkpoints(Settings(address), {}).format.write(step, {"step": step, "weights": WEIGHTS})
    return f"step-{step:08d}.pt"


def newest(address):
    """The step that a resume would find, its content verified; None for a start from scratch."""
    found = Checkpoints(Settings(address), {}).newest(None)
    return found and found[0]["step"]


def use(variables):
    """Make this process one that has been handed the variables of a server."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()  # fsspec's; a client knows the server that it was made for
    os.environ.update(variables)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The variables of one server, which tests share that don't touch it."""
    with objectstore.serve(tmp_path_factory.mktemp("shared")) as variables:
        yield variables


@pytest.fixture(autouse=True)
def environment():
    """The tests' own environment, back again after each."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def address(server, request):
    """A folder of the shared server for one test."""
    use(server)
    return f"s3://checkpoints/{abs(hash(request.node.name)):x}"


@pytest.fixture
def store(address):
    return stores.get(address)


@pytest.fixture
def folder(tmp_path):
    """Where a server of the test's own keeps its objects."""
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


@pytest.fixture
def own(folder):
    """The address on a server of the test's own."""
    with objectstore.serve(folder) as variables:
        use(variables)
        yield OWN


def kill_when_told(program, *words):
    """Run a program until it has said a word, and SIGKILL it there; returns that word."""
    child = subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.PIPE, text=True)
    try:
        return child.stdout.readline().strip()
    finally:
        child.kill()
        assert child.wait() == -signal.SIGKILL
        child.stdout.close()


def wait_until_ended(descriptor):
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(20_000), "it still runs"


# Uploads


HALF_A_PUT = """
import http.client, signal, sys, urllib.parse
url = urllib.parse.urlsplit(sys.argv[1])
connection = http.client.HTTPConnection(url.netloc)
connection.putrequest("PUT", f"{url.path}?{url.query}")
connection.putheader("Content-Length", str(2 << 20))
connection.endheaders(b"x" * (1 << 20))
print("half", flush=True)
if sys.argv[2] == "half":
    signal.pause()
connection.send(b"x" * (1 << 20))
sys.exit(connection.getresponse().status != 200)
"""


@pytest.mark.parametrize("before", [None, b"the object before"])
def test_a_put_that_is_killed_leaves_what_was_there(store, before):
    name = "step-00000001/0.bin"
    if before:
        put(store, name, before)
    url = store.fs.sign(f"{store.root}/{name}", client_method="put_object")
    assert kill_when_told(HALF_A_PUT, url, "half") == "half"
    if before:
        assert read(store, name) == before
    else:
        with pytest.raises(FileNotFoundError):
            store.open(name)
    assert store.has(name) == bool(before)
    assert store.names() == ({"step-00000001"} if before else set())
    subprocess.run([sys.executable, "-c", HALF_A_PUT, url, "whole"], check=True, stdout=subprocess.DEVNULL)
    assert read(store, name) == b"x" * (2 << 20), "so much for a put that is not killed"


HALF_AN_UPLOAD = """
import signal, sys
from takeback.trainers import stores
store = stores.get(sys.argv[1])
with store.create(sys.argv[2], written=signal.pause) as file:
    file.write(b"x" * int(sys.argv[3]))
    file.flush()
    print(len(file.parts or ()), flush=True)
    if sys.argv[4] == "half":
        signal.pause()
    file.close()
    print("all parts", flush=True)
"""


@pytest.mark.parametrize(("size", "until"), [(60 << 20, "half"), (1000, "all")])
def test_an_upload_that_is_killed_leaves_no_object(store, address, size, until):
    child = [sys.executable, "-c", HALF_AN_UPLOAD, address, "large", str(size), until]
    with subprocess.Popen(child, stdout=subprocess.PIPE, text=True) as upload:
        assert upload.stdout.readline().strip() == ("1" if until == "half" else "0")
        assert until == "half" or upload.stdout.readline().strip() == "all parts"
        upload.kill()
    assert not store.has("large") and store.names() == set()
    left = [f"checkpoints/{upload['Key']}" for upload in store.fs.list_multipart_uploads("checkpoints")]
    assert f"{store.root}/large" in left


@pytest.mark.parametrize("size", [0, 1000, 60 << 20])
def test_an_upload_is_one_object_once_it_is_complete(store, size):
    data = os.urandom(size)
    put(store, "large", data)
    assert read(store, "large") == data
    assert store.names() == {"large"}


@pytest.mark.parametrize("size", [60 << 20])
def test_an_upload_that_ends_in_an_error_leaves_what_was_there_and_no_parts(store, size):
    put(store, "large", b"before")
    with pytest.raises(ZeroDivisionError), store.create("large") as file:
        file.write(b"x" * size)
        file.flush()
        raise ZeroDivisionError
    assert read(store, "large") == b"before"
    assert f"{store.root}/large" not in {
        f"checkpoints/{one['Key']}" for one in store.fs.list_multipart_uploads("checkpoints")
    }


# Listings


def test_a_listing_that_a_client_keeps_does_not_hide_what_another_process_saved(store, address):
    import s3fs

    first = save(address, 1)
    keeps = s3fs.S3FileSystem(skip_instance_cache=True)
    for client in (keeps, store.fs, store.reader("step-00000002").fs.fs):
        assert client.ls(store.root)
    program = "import sys; from takeback.trainers import stores\n"
    program += "with stores.get(sys.argv[1]).create('new') as file: file.write(b'new')"
    subprocess.run([sys.executable, "-c", program, address], check=True)
    assert {Path(path).name for path in keeps.ls(store.root)} == {"latest", first}  # what fsspec does by itself
    assert store.names() == {"latest", first, "new"}
    for client in (store.fs, store.reader("step-00000002").fs.fs):
        assert {Path(path).name for path in client.ls(store.root)} == {"latest", first, "new"}


def test_a_listing_of_the_server_that_lags_behind_does_not_make_a_resume_go_back(own, folder, tmp_path):
    """The database of the listing is put back to before the second save: a replica that has not heard of it yet."""
    first, store = save(own, 1), stores.get(own)
    assert store.names() == {"latest", first}  # Swift writes what it was told to the database when it is asked
    shutil.copytree(folder / "disk" / "containers", tmp_path / "before")
    second = save(own, 2)
    assert store.names() == {"latest", first, second}
    shutil.copytree(tmp_path / "before", folder / "disk" / "containers", dirs_exist_ok=True)
    assert store.names() == {"latest", first}
    assert newest(own) == 2


# Damage


def test_a_bit_that_flips_on_the_disk_of_the_server_is_found(own, folder):
    save(own, 1)
    (data,) = (path for path in folder.rglob("*.data") if b"xxh3_128" in path.read_bytes())
    with open(data, "r+b") as file:
        file.seek(data.stat().st_size // 2)
        file.write(b"!")
    with pytest.raises(CheckpointError, match=r"step-00000001.pt: (is damaged|can't be read)"):
        newest(own)


def test_a_bucket_that_is_not_there_is_an_error_and_no_start_from_scratch(address):
    assert newest(address) is None
    with pytest.raises(CheckpointError, match="bucket does not exist"):
        newest("s3://checkpoint/run")


# DCP


def test_dcp_saves_and_loads_the_same_bits(store):
    import torch.distributed.checkpoint as dcp

    name, generator = "step-00000001", torch.Generator().manual_seed(1)
    state = {"weight": torch.randn(300, 200, generator=generator), "step": torch.tensor(7)}
    dcp.save(state, storage_writer=store.writer(name), no_dist=True)
    loaded = {key: torch.zeros_like(value) for key, value in state.items()}
    dcp.load(loaded, storage_reader=store.reader(name), no_dist=True)
    assert all(torch.equal(loaded[key], value) for key, value in state.items())
    store.remove(name)
    assert store.names() == set()


# The server


def test_a_server_on_a_copy_has_the_same_objects_and_leaves_the_first_alone(folder, tmp_path):
    with objectstore.serve(folder) as variables:
        use(variables)
        save(OWN, 1)
    shutil.copytree(folder, tmp_path / "child", copy_function=objectstore.copy)
    with objectstore.serve(tmp_path / "child") as other:
        assert other["AWS_ENDPOINT_URL_S3"] != variables["AWS_ENDPOINT_URL_S3"]
        use(other)
        assert newest(OWN + "/") == 1
        stores.get(OWN).remove("step-00000001.pt")
    with objectstore.serve(folder) as again:
        use(again)
        assert newest(OWN) == 1


def test_a_leg_is_given_its_parents_objects_with_their_attributes_and_may_write_them(tmp_path):
    source = tmp_path / "parent" / "checkpoints" / "disk" / "1.data"
    source.parent.mkdir(parents=True)
    source.write_bytes(b"weights")
    os.setxattr(source, "user.swift.metadata", b"its name")
    source.chmod(0o444)
    leg_job.prepare({"parent": "parent"}, tmp_path / "child")
    copied = tmp_path / "child" / "checkpoints" / "disk" / "1.data"
    assert (copied.read_bytes(), os.getxattr(copied, "user.swift.metadata")) == (b"weights", b"its name")
    assert copied.stat().st_mode & 0o200


@pytest.mark.parametrize(
    ("saves", "says"),
    [(1, "latest: is damaged: it names nothing"), (2, "latest: is damaged: it names nothing, and 2 newer")],
)
def test_a_copy_that_lost_the_attributes_is_refused_and_is_no_start_from_scratch(folder, tmp_path, saves, says):
    with objectstore.serve(folder) as variables:
        use(variables)
        for step in range(1, saves + 1):
            save(OWN, step)
    shutil.copytree(folder, tmp_path / "child", copy_function=shutil.copyfile)
    with objectstore.serve(tmp_path / "child") as other:
        use(other)
        with pytest.raises(CheckpointError, match=says):
            newest(OWN)


OWNER = """
import json, signal, sys
from pathlib import Path
import psutil
from takeback import objectstore
with objectstore.serve(Path(sys.argv[1])) as variables:
    print(json.dumps({"pid": psutil.Process().children()[0].pid, **variables}), flush=True)
    signal.pause()
"""


def test_a_server_ends_with_its_owner_however_that_ends(folder):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True)
    with owner:
        told = json.loads(owner.stdout.readline())
        server = os.pidfd_open(told["pid"])
        port = int(told["AWS_ENDPOINT_URL_S3"].rpartition(":")[2])
        assert port in {connection.laddr.port for connection in psutil.Process(told["pid"]).net_connections()}
        owner.kill()
    try:
        wait_until_ended(server)
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(server, signal.SIGKILL)
        os.close(server)
    assert port not in {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}


ONE_PUT = """
from takeback.trainers import stores
store = stores.get("s3://checkpoints/run")
with store.create("latest") as file:
    file.write(b"step-00000001")
print(store.open("latest").read().decode())
"""


def test_ranks_on_hosts_of_their_own_reach_a_server_on_the_supervisors(folder):
    if reason := network.unavailable():
        pytest.skip(f"{reason} (root)")
    with (
        network.surround({}, folder, world=1) as hosts,
        objectstore.serve(folder, network.address()) as variables,
    ):
        use(variables)
        rank = [sys.executable, "-c", ONE_PUT]
        told = subprocess.run(rank, preexec_fn=lambda: hosts.enter(0), capture_output=True, text=True, check=False)
    assert told.stdout.strip() == "step-00000001", told.stderr[-1000:]


def test_a_server_that_can_not_start_is_an_error(tmp_path):
    with (
        pytest.raises(objectstore.EvidenceError, match="did not start"),
        objectstore.serve(tmp_path / "file" / "checkpoints"),
    ):
        pass


def test_a_server_that_says_nothing_is_an_error_in_time(tmp_path, monkeypatch):
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec sleep 20\n")
    silent.chmod(0o755)
    monkeypatch.setattr(objectstore, "sys", SimpleNamespace(executable=str(silent)))
    monkeypatch.setattr(objectstore, "START", 0.1)
    with pytest.raises(objectstore.EvidenceError, match="did not start: status -9"), objectstore.serve(tmp_path):
        pass


def test_a_server_that_is_gone_is_an_oserror(folder):
    with objectstore.serve(folder) as variables:
        use(variables)
        store = stores.get(OWN)
        put(store, "latest", b"step-00000001")
    for ask in (store.open, store.has):
        with pytest.raises(OSError, match="Could not connect"):
            ask("latest")
