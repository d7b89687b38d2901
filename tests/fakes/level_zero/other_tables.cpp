#include <level_zero/ze_ddi.h>
#include <level_zero/zes_ddi.h>
#include <level_zero/zet_ddi.h>

// The loader asks for tables of functions that this driver does not have. They stay empty, and
// calls through them return UNSUPPORTED_FEATURE.
#define ZG_EMPTY_TABLE(prefix, name, table)                             \
  ZE_DLLEXPORT ze_result_t ZE_APICALL prefix##Get##name##ProcAddrTable( \
      ze_api_version_t, prefix##_##table##_dditable_t*) {               \
    return ZE_RESULT_SUCCESS;                                           \
  }

ZG_EMPTY_TABLE(ze, DeviceExp, device_exp)
ZG_EMPTY_TABLE(ze, Fence, fence)
ZG_EMPTY_TABLE(ze, Image, image)
ZG_EMPTY_TABLE(ze, ImageExp, image_exp)
ZG_EMPTY_TABLE(ze, EventExp, event_exp)
ZG_EMPTY_TABLE(ze, KernelExp, kernel_exp)
ZG_EMPTY_TABLE(ze, Sampler, sampler)
ZG_EMPTY_TABLE(ze, FabricVertexExp, fabric_vertex_exp)
ZG_EMPTY_TABLE(ze, FabricEdgeExp, fabric_edge_exp)
ZG_EMPTY_TABLE(zet, Device, device)
ZG_EMPTY_TABLE(zet, Context, context)
ZG_EMPTY_TABLE(zet, CommandList, command_list)
ZG_EMPTY_TABLE(zet, Module, module)
ZG_EMPTY_TABLE(zet, Kernel, kernel)
ZG_EMPTY_TABLE(zet, MetricGroup, metric_group)
ZG_EMPTY_TABLE(zet, MetricGroupExp, metric_group_exp)
ZG_EMPTY_TABLE(zet, Metric, metric)
ZG_EMPTY_TABLE(zet, MetricStreamer, metric_streamer)
ZG_EMPTY_TABLE(zet, MetricQueryPool, metric_query_pool)
ZG_EMPTY_TABLE(zet, MetricQuery, metric_query)
ZG_EMPTY_TABLE(zet, TracerExp, tracer_exp)
ZG_EMPTY_TABLE(zet, Debug, debug)
ZG_EMPTY_TABLE(zes, Driver, driver)
ZG_EMPTY_TABLE(zes, Device, device)
ZG_EMPTY_TABLE(zes, Scheduler, scheduler)
ZG_EMPTY_TABLE(zes, PerformanceFactor, performance_factor)
ZG_EMPTY_TABLE(zes, Power, power)
ZG_EMPTY_TABLE(zes, Frequency, frequency)
ZG_EMPTY_TABLE(zes, Engine, engine)
ZG_EMPTY_TABLE(zes, Standby, standby)
ZG_EMPTY_TABLE(zes, Firmware, firmware)
ZG_EMPTY_TABLE(zes, Memory, memory)
ZG_EMPTY_TABLE(zes, FabricPort, fabric_port)
ZG_EMPTY_TABLE(zes, Temperature, temperature)
ZG_EMPTY_TABLE(zes, Psu, psu)
ZG_EMPTY_TABLE(zes, Fan, fan)
ZG_EMPTY_TABLE(zes, Led, led)
ZG_EMPTY_TABLE(zes, Ras, ras)
ZG_EMPTY_TABLE(zes, Diagnostics, diagnostics)
