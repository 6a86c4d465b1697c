"""The inputs of planning: models, clusters and jobs, as the files of the
`pipeloom` command describe them."""
import json
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from pipeloom.planner.commands import (Files, Path, data_dir, from_json, native,
                                       raise_for, to_json)


def _source(source: Path) -> str:
    """Returns a shipped name, or a path that is known as one: it has a slash or
    ends in .json."""
    if isinstance(source, str):
        return source
    path = os.fspath(source)
    return path if os.sep in path else os.path.join(os.curdir, path)


def _downloaded(model: str) -> str:
    """Returns the folder of a downloaded model's files, as transformers keeps
    them. ValueError: it is not there."""
    home = os.environ.get("HF_HOME") or os.path.join("~", ".cache",
                                                     "huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    folder = os.path.join(os.path.expanduser(cache),
                          "models--" + model.replace("/", "--"))
    try:
        with open(os.path.join(folder, "refs", "main"),
                  encoding="utf-8") as file:
            found = os.path.join(folder, "snapshots", file.read().strip())
    except OSError:
        found = ""
    if not found or not os.path.exists(os.path.join(found, "config.json")):
        raise ValueError(
            f"there is no file or folder {model}, nor a downloaded model of "
            "that name; give the folder that has its config.json")
    return found


def _merge(into: Dict[str, Any], changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value


class Model:
    """A model: modules of layers, and which feeds which."""

    def __init__(self, spec: Mapping[str, Any], *, name: str = "",
                 architecture: str = "", assumed: Sequence[str] = ()) -> None:
        """Makes a model of the JSON object of a model file. ValueError names
        the field that is wrong."""
        text = to_json({**spec, "name": name} if name else dict(spec), indent=1)
        with Files() as files:
            try:
                known = native().parse_model(text, "model.json")
            except ValueError as error:
                raise ValueError(files.clean(str(error))) from None
        self._take(known, architecture, assumed)

    def _take(self, known: Mapping[str, Any], architecture: str,
              assumed: Sequence[str]) -> None:
        self.name: str = known["name"]
        self.parameters: int = known["parameters"]
        #: Name, layers and parameters of each module.
        self.modules: Tuple[Dict[str, Any], ...] = tuple(known["modules"])
        #: The architecture as its configuration calls it; "" without one.
        self.architecture = architecture
        #: Values that the configuration leaves to its class, in words.
        self.assumed = tuple(assumed)
        self._json: str = known["json"]

    @classmethod
    def load(cls, source: Path) -> "Model":
        """Reads a model file, or the shipped model of that name."""
        model = cls.__new__(cls)
        model._take(native().load_model(_source(source), data_dir()), "", ())
        return model

    @classmethod
    def from_pretrained(cls, path: Path, *, name: str = "") -> "Model":
        """Reads the configuration of a model: of transformers or diffusers (a
        config.json, the folder that has one, or the name of a model that
        transformers has downloaded before, such as "Qwen/Qwen3-8B"), of
        Megatron-LM (a file with its arguments, or "--num-layers 32 ..."), or of
        torchtitan ("torchtitan:llama3/8B"). Downloads nothing. ValueError says
        which parts are not known, or which field is wrong."""
        source = os.fspath(path)
        is_name = source.lstrip().startswith("--") or source.startswith(
            "torchtitan:")
        if not is_name and not os.path.exists(source):
            source = _downloaded(source)
            name = name or os.path.basename(os.fspath(path))
        with Files() as files:
            arguments = ["model", "--format=json",
                         "--out=" + files.path("model.json")]
            if name:
                arguments.append("--name=" + name)
            arguments += ["--", source.strip()]
            kind, message, printed, _ = native().run(arguments, None)
            if kind and printed:
                missing = json.loads(printed)["missing"]
                raise ValueError(f"{os.fspath(path)}: the model is incomplete; "
                                 f"missing: {'; '.join(missing)}")
            raise_for(kind, files.clean(message))
            read = json.loads(printed)
            return cls(json.loads(files.read("model.json")), name=name,
                       architecture=read["architecture"],
                       assumed=read["assumed"])

    @staticmethod
    def shipped() -> List[str]:
        """Returns the names of the shipped models."""
        return native().shipped("model")

    def to_dict(self) -> Dict[str, Any]:
        """Returns the JSON object of a model file."""
        return from_json(self._json)

    def save(self, path: Path) -> None:
        """Writes a model file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self._json)

    def __repr__(self) -> str:
        return f"<Model {self.name}: {self.parameters:,} parameters>"


class Cluster:
    """A cluster: its GPUs, nodes and links."""

    def __init__(self, source: Union[Path, Mapping[str, Any]], *,
                 nodes: Optional[int] = None,
                 gpus_per_node: Optional[int] = None, **fields: Any) -> None:
        """Makes a cluster of a shipped one, a cluster file or the JSON object
        of one. `nodes`, `gpus_per_node` and `fields` (as in the file, such as
        inter_node={"latency_us": 5}) change it. ValueError names the field that
        is wrong."""
        if isinstance(source, Mapping):
            spec = from_json(to_json(dict(source)))
        else:
            spec = self._read(_source(source))
        if nodes is not None:
            fields["num_nodes"] = nodes
        if gpus_per_node is not None:
            fields["gpus_per_node"] = gpus_per_node
        _merge(spec, fields)
        with Files() as files:
            try:
                known = native().parse_cluster(to_json(spec, indent=1),
                                               "cluster.json")
            except ValueError as error:
                raise ValueError(files.clean(str(error))) from None
        spec.setdefault("name", known["name"])
        self._spec = spec
        self.name: str = known["name"]
        self.device: str = known["device"]
        self.num_nodes: int = known["num_nodes"]
        self.gpus_per_node: int = known["gpus_per_node"]

    @staticmethod
    def _read(source: str) -> Dict[str, Any]:
        native().load_cluster(source, data_dir())  # Says what is wrong.
        path = source
        if "/" not in source and not source.endswith(".json"):
            path = os.path.join(data_dir(), "clusters", source + ".json")
        with open(path, encoding="utf-8") as file:
            spec = json.load(file)
        spec.setdefault("name", os.path.splitext(os.path.basename(path))[0])
        return spec

    @classmethod
    def load(cls, source: Path) -> "Cluster":
        """Reads a cluster file, or the shipped cluster of that name."""
        return cls(source)

    @staticmethod
    def shipped() -> List[str]:
        """Returns the names of the shipped clusters."""
        return native().shipped("cluster")

    @property
    def num_gpus(self) -> int:
        """The number of GPUs of all nodes."""
        return self.num_nodes * self.gpus_per_node

    def to_dict(self) -> Dict[str, Any]:
        """Returns the JSON object of a cluster file."""
        return from_json(to_json(self._spec))

    def __repr__(self) -> str:
        return (f"<Cluster {self.name}: {self.num_nodes} nodes of "
                f"{self.gpus_per_node} {self.device}>")


class Job:
    """A training job: model, cluster, parallel layout and training set-up."""

    def __init__(self, model: Union[Model, Path, Mapping[str, Any]],
                 cluster: Union[Cluster, Path, Mapping[str, Any]], *,
                 tp: int = 1, pp: int = 1, dp: int = 1, cp: int = 1,
                 ep: int = 1, microbatches: Optional[int] = None,
                 microbatch_tokens: int,
                 microbatch_samples: Optional[int] = None,
                 global_batch_samples: Optional[int] = None,
                 global_batch_tokens: Optional[int] = None, name: str = "",
                 parallel: Optional[Mapping[str, Any]] = None,
                 training: Optional[Mapping[str, Any]] = None,
                 setup: Optional[Mapping[str, Any]] = None,
                 search: Optional[Mapping[str, Any]] = None,
                 partition: Optional[Mapping[str, Any]] = None) -> None:
        """Makes a job. `tp`, `pp`, `dp`, `cp` and `ep` are the GPUs of the
        parallel dimensions; a step has `microbatches` of at most
        `microbatch_tokens` backbone tokens in each replica, and of at most
        `microbatch_samples` samples. Give `microbatches`, or the batch of all
        replicas in samples (with `microbatch_samples`) or tokens. `parallel`,
        `training`, `setup`, `search` and `partition` add fields as in a job
        file (docs/plan_format.md). ValueError names the field that is wrong."""
        if not isinstance(model, Model):
            model = (Model(model) if isinstance(model, Mapping)
                     else Model.load(model))
        if not isinstance(cluster, Cluster):
            cluster = Cluster(cluster)
        spec: Dict[str, Any] = {
            "name": name or model.name, "model_spec": model.to_dict(),
            "cluster_spec": cluster.to_dict(),
            "parallel": {"tp": tp, "cp": cp, "ep": ep, "pp": pp, "dp": dp,
                         **(parallel or {})},
            "training": {"microbatch_tokens": microbatch_tokens}}
        spec["training"].update(
            (field, value) for field, value in (
                ("microbatches", microbatches),
                ("microbatch_samples", microbatch_samples),
                ("global_batch_samples", global_batch_samples),
                ("global_batch_tokens", global_batch_tokens))
            if value is not None)
        spec["training"].update(training or {})
        for key, value in (("setup", setup), ("search", search),
                           ("partition", partition)):
            if value is not None:
                spec[key] = dict(value)
        self._take("", to_json(spec, indent=1), [])

    def _take(self, source: str, text: str, sets: List[str]) -> None:
        """Takes the shipped name or the path `source`, or else the text of a
        job file."""
        self._source = source
        self._text = text
        self._sets = sets
        with Files() as files:
            try:
                known = native().describe_job(self._path(files), data_dir(),
                                              sets)
            except ValueError as error:
                raise ValueError(files.clean(str(error))) from None
        self.name: str = known["name"]
        self.model: str = known["model"]
        self.cluster: str = known["cluster"]
        self.tp: int = known["tp"]
        self.cp: int = known["cp"]
        self.ep: int = known["ep"]
        self.pp: int = known["pp"]
        self.dp: int = known["dp"]
        self.num_gpus: int = known["num_gpus"]
        self.microbatches: int = known["microbatches"]
        #: Memory of one GPU that plans may use.
        self.memory_limit_bytes: int = known["memory_limit_bytes"]
        self.strategy: str = known["strategy"]
        self.parameters: int = known["parameters"]

    def _path(self, files: Files) -> str:
        return self._source or files.add("job.json", self._text)

    def arguments(self, files: Files) -> List[str]:
        """Returns the job as arguments of a command."""
        return [self._path(files), "--data-dir=" + data_dir(),
                *("--set=" + text for text in self._sets)]

    @classmethod
    def load(cls, source: Union["Job", Path, Mapping[str, Any]]) -> "Job":
        """Reads a job file, the shipped job of that name, or the JSON object of
        a job file."""
        if isinstance(source, Job):
            return source
        if isinstance(source, (Model, Cluster)):
            raise TypeError(f"job is a {type(source).__name__}; give "
                            "pipeloom.Job(model, cluster, ...)")
        if not isinstance(source, (str, os.PathLike, Mapping)):
            raise TypeError(f"job is {source!r}; give a pipeloom.Job, a job "
                            "file or the name of a shipped job")
        job = cls.__new__(cls)
        if isinstance(source, Mapping):
            spec = dict(source)
            for part in ("model", "cluster"):  # Relative to this folder.
                path = spec.get(part)
                if isinstance(path, str) and ("/" in path or
                                              path.endswith(".json")):
                    spec[part] = os.path.abspath(path)
            job._take("", to_json(spec, indent=1), [])
        else:
            job._take(_source(source), "", [])
        return job

    def with_changes(self, changes: Mapping[str, Any]) -> "Job":
        """Returns the job with other values of fields, by their path:
        {"parallel.pp": 8, "cluster.num_nodes": "*2"} (docs/whatif.md)."""
        job = Job.__new__(Job)
        sets = [f"{path}={value if isinstance(value, str) else to_json(value)}"
                for path, value in changes.items()]
        job._take(self._source, self._text, [*self._sets, *sets])
        return job

    @staticmethod
    def shipped() -> List[str]:
        """Returns the names of the shipped jobs."""
        return native().shipped("job")

    @staticmethod
    def of_stages(*args: Any, **kwargs: Any) -> Any:
        """Returns an open job of a service with the trainer's own partition:
        pipeloom.client.Job.of_stages."""
        from pipeloom.client import Job as OpenJob
        return OpenJob.of_stages(*args, **kwargs)

    def __repr__(self) -> str:
        return (f"<Job {self.name}: tp {self.tp} cp {self.cp} ep {self.ep} "
                f"pp {self.pp} dp {self.dp} of {self.cluster}>")
