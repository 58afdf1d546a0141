"""`aws s3`: ls, cp, mv, rm, sync, mb, rb and presign, translated to API calls. `act` is the entry.

Calls, outputs and exit statuses are those of the AWS CLI (tests/domains/cloud/true_cli.py), but for progress bars.
https://docs.aws.amazon.com/cli/latest/reference/s3/
"""

import fnmatch
import mimetypes
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ddppo.domains.cloud.cli import ApiCall, S3Command
from ddppo.domains.cloud.folder import CommandError, Folder, inside

# Of the options of a transfer: the parameters of PutObject and CopyObject.
PARAMETERS = {
    "acl": "ACL",
    "storage-class": "StorageClass",
    "website-redirect": "WebsiteRedirectLocation",
    "content-type": "ContentType",
    "cache-control": "CacheControl",
    "content-disposition": "ContentDisposition",
    "content-encoding": "ContentEncoding",
    "content-language": "ContentLanguage",
    "expires": "Expires",
    "metadata": "Metadata",
    "sse": "ServerSideEncryption",
    "sse-kms-key-id": "SSEKMSKeyId",
    "request-payer": "RequestPayer",
    "checksum-algorithm": "ChecksumAlgorithm",
}
GRANTS = {
    "read": "GrantRead",
    "full": "GrantFullControl",
    "readacl": "GrantReadACP",
    "writeacl": "GrantWriteACP",
}
TYPES = mimetypes.MimeTypes()  # the same on every machine
UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@dataclass(frozen=True)
class ObjectAccess:
    """What `aws s3` needs of a world."""

    folder: Folder
    perform: Callable[[ApiCall], dict[str, Any]]  # make a call; times are datetimes. Raises CommandError
    presigned: Callable[
        [str, str, int], str
    ]  # an address from which an object can be read for so many seconds


@dataclass
class Said:
    """What a command has printed so far."""

    out: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    status: int = 0
    code: str = ""  # of the service's last error
    body: bytes = b""  # of an object that went to the terminal

    def failed(self, line: str, error: Exception, status: int = 1) -> None:
        self.errors.append(line)
        self.status, self.code = status, getattr(error, "code", "") or self.code


@dataclass(frozen=True)
class Item:
    """A file or an object that a transfer is about."""

    source: str  # path in the folder, or bucket/key
    target: str
    name: str  # relative to the root of the transfer: what sync compares
    size: int | None
    time: float


def act(command: S3Command, account: ObjectAccess, moment: str) -> Said:
    """Make the API calls of a command; return what it prints, with `moment` in place of every time."""
    said = Said()
    match command.verb:
        case "ls":
            _list(command, account, moment, said)
        case "mb":
            _make(command, account, said)
        case "rb":
            _remove_bucket(command, account, said)
        case "presign":
            bucket, key = _parted(command.places[0])
            said.out.append(account.presigned(bucket, key, command.options["expires-in"]))
        case _:
            _Transfer(command, account, said).run()
    return said


def _parted(place: str) -> tuple[str, str]:
    bucket, _, key = place.removeprefix("s3://").partition("/")
    return bucket, key


# -- buckets -----------------------------------------------------------------------------------------------------------


def _make(command: S3Command, account: ObjectAccess, said: Said) -> None:
    bucket = _parted(command.places[0])[0]
    params: dict[str, Any] = {"Bucket": bucket}
    if tags := command.options.get("tags"):
        params["CreateBucketConfiguration"] = {"Tags": [{"Key": key, "Value": value} for key, value in tags]}
    _changed(account, said, "create-bucket", params, "make_bucket", command.places[0])


def _remove_bucket(command: S3Command, account: ObjectAccess, said: Said) -> None:
    if "force" in command.options:
        _Transfer(S3Command("rm", command.places, {"recursive": True}), account, said).run()
        if said.status != 0:
            raise CommandError(
                "\n".join(
                    (
                        *said.out,
                        *said.errors,
                        "remove_bucket failed: Unable to delete all objects in the bucket, bucket will not be deleted.",
                    )
                ),
                255,
                said.code,
            )
    bucket = _parted(command.places[0])[0]
    _changed(account, said, "delete-bucket", {"Bucket": bucket}, "remove_bucket", command.places[0])


def _changed(
    account: ObjectAccess, said: Said, operation: str, params: dict[str, Any], what: str, place: str
) -> None:
    try:
        account.perform(ApiCall("s3api", operation, params))
        said.out.append(f"{what}: {params['Bucket']}")
    except CommandError as error:
        said.failed(f"{what} failed: {place} {error.output}", error)


# -- lists -------------------------------------------------------------------------------------------------------------


def _pages(account: ObjectAccess, operation: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the pages of list-objects-v2 or list-buckets."""
    token = {"list-objects-v2": "NextContinuationToken", "list-buckets": "ContinuationToken"}[operation]
    while True:
        page = account.perform(ApiCall("s3api", operation, params))
        yield page
        if not page.get(token):
            return
        params = params | {"ContinuationToken": page[token]}


def _list(command: S3Command, account: ObjectAccess, moment: str, said: Said) -> None:
    when, options = moment.replace("T", " ")[:19], command.options
    place = command.places[0]
    bucket, prefix = _parted(place)
    if not bucket:
        params = {"MaxBuckets": options.get("page-size")}
        params |= {"Prefix": options.get("bucket-name-prefix"), "BucketRegion": options.get("bucket-region")}
        params = {name: value for name, value in params.items() if value is not None}
        for page in _pages(account, "list-buckets", params):
            said.out += [f"{when} {one['Name']}" for one in page.get("Buckets", [])]
        _summary(options, 0, 0, said)
        return
    is_recursive, human = "recursive" in options, "human-readable" in options
    params = _listing(bucket, prefix, options)
    if not is_recursive:
        params["Delimiter"] = "/"
    sizes: list[int] = []
    is_empty = True
    for page in _pages(account, "list-objects-v2", params):
        for folder in page.get("CommonPrefixes", []):
            is_empty = False
            said.out.append(f"{'PRE':>30} {folder['Prefix'].split('/')[-2]}/")
        for one in page.get("Contents", []):
            is_empty = False
            sizes.append(one["Size"])
            size = _human(one["Size"]) if human else str(one["Size"])
            name = one["Key"] if is_recursive else one["Key"].split("/")[-1]
            said.out.append(f"{when} {size:>10} {name}")
    _summary(options, len(sizes), sum(sizes), said)
    # As of grep, the status says whether anything was found.
    said.status = 1 if prefix and is_empty else 0


def _listing(bucket: str, prefix: str, options: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
    if "page-size" in options:
        params["MaxKeys"] = options["page-size"]
    if "request-payer" in options:
        params["RequestPayer"] = options["request-payer"]
    return params


def _summary(options: dict[str, Any], number: int, size: int, said: Said) -> None:
    if "summarize" in options:
        shown = _human(size) if "human-readable" in options else size
        said.out += ["", f"Total Objects: {number}", f"   Total Size: {shown}"]


def _human(size: int) -> str:
    """Return a size in bytes as `1 Byte`, `12 Bytes`, `1.5 KiB`."""
    if size < 1024:
        return "1 Byte" if size == 1 else f"{size} Bytes"
    for at, unit in enumerate(UNITS):
        if round(size / 1024 ** (at + 2) * 1024) < 1024:
            return f"{size / 1024 ** (at + 1):.1f} {unit}"
    raise AssertionError(size)


# -- transfers: cp, mv, rm and sync ------------------------------------------------------------------------------------


class _Transfer:
    """One command that copies, moves or deletes objects or files."""

    def __init__(self, command: S3Command, account: ObjectAccess, said: Said) -> None:
        self._verb, self._options = command.verb, command.options
        self._account, self._folder, self._said = account, account.folder, said
        # A bucket without a slash is all of it.
        places = [
            f"{place}/" if place.startswith("s3://") and "/" not in place[5:] else place
            for place in command.places
        ]
        self._source, self._target = places[0], places[-1]
        self._is_s3 = (self._source.startswith("s3://"), self._target.startswith("s3://"))
        self._is_whole = command.verb == "sync" or "recursive" in command.options
        self._kind = "delete" if command.verb == "rm" else KINDS[self._is_s3]

    def run(self) -> None:
        if "-" in (self._source, self._target) and self._verb == "cp":
            self._stream()
            return
        if self._kind == "upload" and not self._is_there(self._source):
            raise CommandError(f"The user-provided path {self._source} does not exist.", 255)
        if self._is_whole and not self._is_s3[0] and self._folder.is_file(self._source):
            self._said.errors.append(f"warning: Skipping file {self._source}/. File does not exist.")
            self._said.status = 2
            return
        # 1. What the command is about. Services' errors end it here.
        try:
            items = list(self._filtered(self._found(self._source, self._target, self._kind)))
            removed: list[Item] = []
            if self._verb == "sync":
                other = self._found(self._target, self._source, "")
                items, removed = self._compared(items, list(self._filtered(other, of_target=True)))
            self._params()  # a wrong grant ends it, too
        except CommandError as error:
            self._said.failed(f"fatal error: {error.output}", error)
            return
        # 2. The transfers, by name.
        for item, is_removed in sorted(
            [(item, False) for item in items] + [(item, True) for item in removed],
            key=lambda pair: pair[0].name,
        ):
            self._one(item, is_removed)

    def _is_there(self, path: str) -> bool:
        return self._folder.is_file(path) or self._folder.is_folder(path)

    # What there is.

    def _found(self, source: str, target: str, kind: str) -> Iterator[Item]:
        """Yield the files or objects at a place, with the targets that they would go to."""
        root, _ = self._root(source)
        to, adds_name = self._root(target)
        for path, size, time in (
            self._objects(root, kind) if source.startswith("s3://") else self._files(root)
        ):
            name = path[len(root) :] if self._is_whole else path.split("/")[-1]
            yield Item(path, to + name if adds_name else to, name, size, time)

    def _root(self, place: str) -> tuple[str, bool]:
        """Return a place as a path without s3://, and whether names are added to it."""
        if place.startswith("s3://"):
            path = place.removeprefix("s3://")
            path = f"{path}/" if self._is_whole and not path.endswith("/") else path
            return path, path.endswith("/")
        path = inside(place)
        if self._is_whole or place.endswith("/") or self._folder.is_folder(place):
            return (f"{path}/" if path else ""), True
        return path, False

    def _files(self, root: str) -> Iterator[tuple[str, int | None, float]]:
        if not self._is_whole:
            yield root, len(self._folder.read(root)) if self._folder.is_file(root) else 0, 0.0
            return
        for name in self._folder.under(root):
            yield name, len(self._folder.read(name)), self._folder.time_of(name)

    def _objects(self, root: str, kind: str) -> Iterator[tuple[str, int | None, float]]:
        bucket, key = _parted(root)
        if not self._is_whole and key:
            # Nothing needs to be known of an object that is deleted.
            if kind == "delete":
                yield root, None, 0.0
                return
            head = self._head(bucket, key)
            yield root, head["ContentLength"], head["LastModified"].timestamp()
            return
        for page in _pages(self._account, "list-objects-v2", _listing(bucket, key, self._options)):
            for one in page.get("Contents", []):
                # An empty object `folder/` stands for a folder, which is made by the files in it.
                is_folder = one["Size"] == 0 and one["Key"].endswith("/")
                if self._is_whole and (not is_folder or kind == "delete"):
                    yield f"{bucket}/{one['Key']}", one["Size"], one["LastModified"].timestamp()

    def _head(self, bucket: str, key: str) -> dict[str, Any]:
        try:
            return self._account.perform(
                ApiCall("s3api", "head-object", {"Bucket": bucket, "Key": key, **self._payer()})
            )
        except CommandError as error:
            if error.code == "404":
                said = "An error occurred (404) when calling the HeadObject operation"
                raise CommandError(f'{said}: Key "{key}" does not exist', 254, "404") from error
            raise

    def _payer(self) -> dict[str, Any]:
        return {"RequestPayer": "requester"} if "request-payer" in self._options else {}

    def _filtered(self, items: Iterator[Item], *, of_target: bool = False) -> Iterator[Item]:
        """Leave out what --exclude and --include leave out. The last pattern that fits decides."""
        roots = [self._filter_root(place) for place in (self._source, self._target)]
        is_s3 = self._is_s3[1 if of_target else 0]
        for item in items:
            path = item.source if is_s3 else f"/{item.source}"
            keeps = True
            for kind, pattern in self._options.get("filters", ()):
                if any(fnmatch.fnmatchcase(path, posixpath.join(root, pattern)) for root in roots):
                    keeps = kind == "include"
            if keeps:
                yield item

    def _filter_root(self, place: str) -> str:
        if place.startswith("s3://"):
            bucket, key = _parted(place)
            if not self._is_whole and not key.endswith("/"):
                key = "/".join(key.split("/")[:-1])
            return f"{bucket}/{key}"
        return "/" + inside(place if self._is_whole else posixpath.dirname(place))

    def _compared(self, sources: list[Item], targets: list[Item]) -> tuple[list[Item], list[Item]]:
        """Return what sync has to transfer, and what it has to remove."""
        there = {item.name: item for item in targets}
        names = {item.name for item in sources}
        missing_or_changed = [
            item for item in sources if item.name not in there or self._differs(item, there[item.name])
        ]
        gone = [item for item in targets if item.name not in names] if "delete" in self._options else []
        return missing_or_changed, gone

    def _differs(self, source: Item, target: Item) -> bool:
        if source.size != target.size:
            return True
        if "size-only" in self._options:
            return False
        if self._kind == "download":
            if "exact-timestamps" in self._options:
                return source.time != target.time
            return target.time > source.time
        return target.time < source.time

    # What is done.

    def _one(self, item: Item, is_removed: bool) -> None:
        kind = "delete" if is_removed else self._kind
        shown = self._shown(item, kind, is_removed)
        word = "move" if self._verb == "mv" else kind
        if "dryrun" in self._options:
            self._print(f"(dryrun) {word}: {shown}")
            return
        try:
            if is_removed and not self._is_s3[1]:
                self._folder.remove(item.source)
            else:
                getattr(self, f"_{kind}")(item)
                if self._verb == "mv":
                    self._drop_source(item)
        except (CommandError, OSError) as error:
            said = error.output if isinstance(error, CommandError) else str(error)
            line = f"{word} failed: {shown} {said}"
            self._said.failed(line, error)
            if "quiet" in self._options:
                self._said.errors.remove(line)
            return
        self._print(f"{word}: {shown}")

    def _shown(self, item: Item, kind: str, is_removed: bool) -> str:
        source = f"s3://{item.source}" if self._is_s3[1 if is_removed else 0] else _relative(item.source)
        if kind == "delete":
            return source
        return f"{source} to {f's3://{item.target}' if self._is_s3[1] else _relative(item.target)}"

    def _print(self, line: str) -> None:
        if not {"quiet", "only-show-errors"} & set(self._options):
            self._said.out.append(line)

    def _upload(self, item: Item) -> None:
        params = {"ChecksumAlgorithm": "CRC32"} | self._params()
        kind = TYPES.guess_type(item.source)[0]
        if kind and "no-guess-mime-type" not in self._options:
            params = {"ContentType": kind} | params
        bucket, key = _parted(item.target)
        body = self._folder.read(item.source)
        self._account.perform(
            ApiCall("s3api", "put-object", {"Bucket": bucket, "Key": key, "Body": body} | params)
        )

    def _download(self, item: Item) -> None:
        bucket, key = _parted(item.source)
        body = self._account.perform(
            ApiCall("s3api", "get-object", {"Bucket": bucket, "Key": key} | self._fetch())
        )
        self._folder.write(item.target, body["Body"], item.time)

    def _copy(self, item: Item) -> None:
        (bucket, key), (to, to_key) = _parted(item.source), _parted(item.target)
        params = {"Bucket": to, "Key": to_key, "CopySource": {"Bucket": bucket, "Key": key}} | self._params()
        if "metadata-directive" in self._options:
            params["MetadataDirective"] = self._options["metadata-directive"]
        elif params.get("Metadata"):
            params["MetadataDirective"] = "REPLACE"
        self._account.perform(ApiCall("s3api", "copy-object", params))

    def _delete(self, item: Item) -> None:
        bucket, key = _parted(item.source)
        self._account.perform(
            ApiCall("s3api", "delete-object", {"Bucket": bucket, "Key": key} | self._payer())
        )

    def _drop_source(self, item: Item) -> None:
        if self._is_s3[0]:
            self._delete(item)
        else:
            self._folder.remove(item.source)

    def _stream(self) -> None:
        """Copy an object to the terminal, or from it: nothing is typed there, so the object is empty."""
        self._options = self._options | {"only-show-errors": True}
        try:
            if self._source == "-":
                bucket, key = _parted(self._target)
                params = {
                    "Bucket": bucket,
                    "Key": key,
                    "Body": b"",
                    "ChecksumAlgorithm": "CRC32",
                } | self._params()
                self._account.perform(ApiCall("s3api", "put-object", params))
                return
            bucket, key = _parted(self._source)
            self._account.perform(
                ApiCall("s3api", "head-object", {"Bucket": bucket, "Key": key} | self._payer())
            )
            found = self._account.perform(
                ApiCall("s3api", "get-object", {"Bucket": bucket, "Key": key} | self._fetch())
            )
            self._said.body = found["Body"]
        except CommandError as error:
            kind = "upload" if self._source == "-" else "download"
            self._said.failed(f"{kind} failed: {self._source} to {self._target} {error.output}", error)

    def _params(self) -> dict[str, Any]:
        """Return the parameters of PutObject and CopyObject that options give."""
        found = {of: self._options[name] for name, of in PARAMETERS.items() if self._options.get(name)}
        for grant in self._options.get("grants", ()):
            permission, equals, grantee = grant.partition("=")
            if not equals:
                raise CommandError("grants should be of the form permission=principal", 255)
            if permission not in GRANTS:
                raise CommandError("permission must be one of: read|readacl|writeacl|full", 255)
            found[GRANTS[permission]] = grantee
        return found

    def _fetch(self) -> dict[str, Any]:
        mode = {"ChecksumMode": "ENABLED"} if "checksum-mode" in self._options else {}
        return self._payer() | mode


KINDS = {(True, True): "copy", (True, False): "download", (False, True): "upload"}


def _relative(path: str) -> str:
    return path if "/" in path else f"./{path}"
