//! Stream capture, and the calls that the driver refuses during a capture.

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};
use crate::scenario::alone;

const GLOBAL: c_uint = 0;
const THREAD_LOCAL: c_uint = 1;

fn end(driver: &Driver, stream: CUstream, expected: CUresult) -> CUgraph {
    let mut graph = CUgraph(core::ptr::without_provenance_mut(1));
    driver.cuStreamEndCapture(stream, &mut graph).is(expected);
    assert_eq!(graph.is_null(), expected != CUresult::SUCCESS);
    graph
}

#[test]
fn unsafe_calls_end_a_global_capture() {
    alone("capture::unsafe_calls_end_a_global_capture", "", || {
        let driver = Driver::with_context();
        let (stream, other, function) = (driver.stream(1), driver.stream(1), driver.function(c"spin_ns"));
        let (event, mut address) = (driver.event(), 0);
        let unsafe_calls: [&dyn Fn(&mut CUdeviceptr) -> CUresult; 5] = [
            &|address| driver.cuMemAlloc_v2(address, 512),
            &|_| driver.cuCtxSynchronize(),
            &|_| driver.cuStreamSynchronize(other),
            &|_| driver.cuEventQuery(event),
            &|_| driver.cuStreamSynchronize(stream),
        ];
        for call in unsafe_calls {
            driver.cuStreamBeginCapture_v2(stream, GLOBAL).ok();
            call(&mut address).is(CUresult::STREAM_CAPTURE_UNSUPPORTED);
            driver.spin(function, 1000, stream).is(CUresult::STREAM_CAPTURE_INVALIDATED);
            let mut status = 0;
            driver.cuStreamIsCapturing(stream, &mut status).ok();
            assert_eq!(status, 2);
            end(&driver, stream, CUresult::STREAM_CAPTURE_INVALIDATED);
        }
        driver.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED).ok();
        driver.cuMemAlloc_v2(&mut address, 512).ok();
        driver.cuStreamQuery(stream).is(CUresult::STREAM_CAPTURE_UNSUPPORTED);
        end(&driver, stream, CUresult::STREAM_CAPTURE_INVALIDATED);
        driver.cuStreamBeginCapture_v2(CUstream::NULL, GLOBAL).is(CUresult::STREAM_CAPTURE_UNSUPPORTED);
        driver.cuStreamBeginCapture_v2(stream, 3).is(CUresult::INVALID_VALUE);
    });
}

#[test]
fn capture_modes_decide_which_threads_calls_are_forbidden() {
    alone("capture::capture_modes_decide_which_threads_calls_are_forbidden", "", || {
        let driver = Driver::with_context();
        let stream = driver.stream(1);
        let mut context = CUcontext::NULL;
        driver.cuCtxGetCurrent(&mut context).ok();
        let allocate_elsewhere = |relaxed: bool| {
            let allocate = || {
                let (mut address, mut mode) = (0, CU_STREAM_CAPTURE_MODE_RELAXED);
                driver.cuCtxSetCurrent(context).ok();
                if relaxed {
                    driver.cuThreadExchangeStreamCaptureMode(&mut mode).ok();
                    assert_eq!(mode, GLOBAL);
                }
                driver.cuMemAlloc_v2(&mut address, 512)
            };
            std::thread::scope(|scope| scope.spawn(allocate).join().expect("the thread ends"))
        };
        driver.cuStreamBeginCapture_v2(stream, THREAD_LOCAL).ok();
        allocate_elsewhere(false).ok();
        end(&driver, stream, CUresult::SUCCESS);
        driver.cuStreamBeginCapture_v2(stream, GLOBAL).ok();
        allocate_elsewhere(true).ok();
        allocate_elsewhere(false).is(CUresult::STREAM_CAPTURE_UNSUPPORTED);
        end(&driver, stream, CUresult::STREAM_CAPTURE_INVALIDATED);
        driver.cuStreamBeginCapture_v2(stream, THREAD_LOCAL).ok();
        let elsewhere = || {
            let mut graph = CUgraph::NULL;
            driver.cuStreamEndCapture(stream, &mut graph)
        };
        let result = std::thread::scope(|scope| {
            let body = || {
                driver.cuCtxSetCurrent(context).ok();
                elsewhere()
            };
            scope.spawn(body).join().expect("the thread ends")
        });
        result.is(CUresult::STREAM_CAPTURE_WRONG_THREAD);
        end(&driver, stream, CUresult::SUCCESS);
    });
}

#[test]
fn the_legacy_stream_cannot_be_used_beside_a_blocking_one() {
    alone("capture::the_legacy_stream_cannot_be_used_beside_a_blocking_one", "", || {
        let driver = Driver::with_context();
        let (blocking, free, function) = (driver.stream(0), driver.stream(1), driver.function(c"spin_ns"));
        driver.cuStreamBeginCapture_v2(free, GLOBAL).ok();
        driver.spin(function, 1000, CUstream::NULL).ok();
        end(&driver, free, CUresult::SUCCESS);
        driver.cuStreamBeginCapture_v2(blocking, GLOBAL).ok();
        driver.spin(function, 1000, CUstream::NULL).is(CUresult::STREAM_CAPTURE_IMPLICIT);
        end(&driver, blocking, CUresult::STREAM_CAPTURE_INVALIDATED);
        let mut graph = CUgraph::NULL;
        driver.cuStreamEndCapture(blocking, &mut graph).is(CUresult::ILLEGAL_STATE);
    });
}

#[test]
fn streams_join_by_events() {
    alone("capture::streams_join_by_events", "", || {
        let driver = Driver::with_context();
        let (first, second, function) = (driver.stream(1), driver.stream(1), driver.function(c"spin_ns"));
        let (fork, join, outside) = (driver.event(), driver.event(), driver.event());
        let begin = || {
            driver.cuStreamBeginCapture_v2(first, GLOBAL).ok();
            driver.spin(function, 1000, first).ok();
            driver.cuEventRecord(fork, first).ok();
            driver.cuStreamWaitEvent(second, fork, 0).ok();
            driver.spin(function, 2000, second).ok();
        };
        begin();
        driver.cuStreamBeginCapture_v2(second, GLOBAL).is(CUresult::ILLEGAL_STATE);
        driver.cuEventQuery(fork).is(CUresult::CAPTURED_EVENT);
        driver.cuEventRecord(join, second).ok();
        driver.cuStreamWaitEvent(first, join, 0).ok();
        let graph = end(&driver, first, CUresult::SUCCESS);
        let (mut nodes, mut edges) = (0, 0);
        driver.cuGraphGetNodes(graph, core::ptr::null_mut(), &mut nodes).ok();
        driver.cuGraphGetEdges(graph, core::ptr::null_mut(), core::ptr::null_mut(), &mut edges).ok();
        assert_eq!((nodes, edges), (2, 1));
        begin();
        end(&driver, first, CUresult::STREAM_CAPTURE_UNJOINED);
        begin();
        let mut graph = CUgraph::NULL;
        driver.cuStreamEndCapture(second, &mut graph).is(CUresult::STREAM_CAPTURE_UNMATCHED);
        end(&driver, first, CUresult::STREAM_CAPTURE_INVALIDATED);
        begin();
        driver.cuStreamWaitEvent(first, outside, 0).is(CUresult::STREAM_CAPTURE_ISOLATION);
        end(&driver, first, CUresult::STREAM_CAPTURE_INVALIDATED);
    });
}
