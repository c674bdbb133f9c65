//! Generic clients of the manager's socket: Python's gRPC package with default options.

use std::process::Command;

use aliquot_harness::{Node, PythonEnvironment, SimulatedGpu, run};

/// Learns the interface by reflection, makes a slice, and removes it.
const CLIENT: &str = r#"
import sys, grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "aliquot.node.v1.NodeManager"

def services(channel, version):
    ask = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    answer = next(ask(iter([reflection_pb2.ServerReflectionRequest(list_services="")])))
    return sorted(service.name for service in answer.list_services_response.service)

with grpc.insecure_channel(sys.argv[1]) as channel:
    request = health_pb2.HealthCheckRequest(service=SERVICE)
    print("serving", health_pb2_grpc.HealthStub(channel).Check(request).status)
    for version in ["v1", "v1alpha"]:
        print(version, *services(channel, version))
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    methods = pool.FindServiceByName(SERVICE).methods_by_name

    def call(called, **fields):
        method = methods[called]
        request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        ask = channel.unary_unary(f"/{SERVICE}/{called}", request.SerializeToString, answer.FromString)
        return ask(request(**fields))

    print("devices", len(call("GetNode").devices))
    call("CreateSlice", name="from-python", parts=[{"core_request_percent": 10, "memory_limit_bytes": 1 << 30}])
    print("slices", [slice.name for slice in call("ListSlices").slices])
    try:
        call("GetSlice", name="absent")
    except grpc.RpcError as error:
        print(error.code().name)
    call("RemoveSlice", name="from-python")
    print("slices", [slice.name for slice in call("ListSlices").slices])
"#;

#[test]
fn grpc_for_python_needs_no_options() {
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let socket = node.socket().display().to_string();
    for target in [format!("unix:{socket}"), format!("unix://{socket}")] {
        let mut command = Command::new(PythonEnvironment::grpc().interpreter());
        let ended = run(command.args(["-c", CLIENT, &target])).success();
        let services = "aliquot.node.v1.NodeManager grpc.health.v1.Health";
        ended.assert_said(&format!(
            "serving 1\n\
             v1 {services} grpc.reflection.v1.ServerReflection\n\
             v1alpha {services} grpc.reflection.v1alpha.ServerReflection\n\
             devices 1\n\
             slices ['from-python']\n\
             NOT_FOUND\n\
             slices []\n"
        ));
    }
}
