#include <set>

#include "tests/tools/config/config_matrix.h"
#include "tests/zero/deepspeed/deepspeed_case.h"

// The settings that every honoured key gives (tests/tools/config/config_matrix.h has the columns).
// The expectations follow DeepSpeed and, for "auto", transformers and accelerate, which fill it
// from their own arguments.
namespace zg::testing {
namespace {

using nlohmann::json;
using zero::deepspeed::Row;

const char* const general_keys = R"(
gradient_clipping 0.25 | clip_norm=1 | clip_norm=0.25 | clip_norm=1
  --clip 0.5 | clip_norm=0.5
  --compat 0.16 | clip_norm=0.25 | clip_norm=0 | clip_norm=1 | -
steps_per_print 2 | stage=0 | steps_per_print=2 | refused
memory_breakdown true | stage=0 | dump_memory=true | refused
  --dump-memory=false | same
  --dump-memory | dump_memory=true
memory_breakdown false | stage=0 | same | refused
  --dump-memory | dump_memory=true
dump_state true | stage=0 | dump_state=true | refused
data_types.grad_accum_dtype bf16 | grad_accum=f32 | grad_accum=bf16 | refused
  --grad-accum-dtype f32 | same
data_types.grad_accum_dtype fp32 | grad_accum=f32 | same | refused
  --grad-accum-dtype bf16 | grad_accum=bf16

fp16.enabled true | compute=f32 | compute=f16 | same
  --precision bf16 | compute=bf16
  --precision f32 | same
  --precision f16 | compute=f16
  --fp16 | compute=f16 | . | . | fp16.enabled (--precision)
  --precision fsdp-memory | compute=bf16 preset=fsdp-memory load=bf16 optimizer=bf16 grad_accum=bf16
fp16.loss_scale 48 | compute=f16 loss_scale=0 | loss_scale=48 | same
  --initial-scale-power 5 | initial_scale_power=5
  --precision bf16 | compute=bf16 | . | . | -
fp16.initial_scale_power 5 | initial_scale_power=16 | initial_scale_power=5 | same
  --initial-scale-power 7 | initial_scale_power=7
fp16.initial_scale_power 5 | compute=f32 initial_scale_power=16 | same | same
  with {"fp16": {"enabled": "auto"}}
  --precision f16 | compute=f16 initial_scale_power=5 | compute=f16 | . | -
fp16.loss_scale_window 11 | loss_scale_window=1000 | loss_scale_window=11 | same
fp16.hysteresis 3 | hysteresis=2 | hysteresis=3 | same
fp16.consecutive_hysteresis true | consecutive_hysteresis=false | consecutive_hysteresis=true | same
fp16.min_loss_scale 12 | min_loss_scale=1 | min_loss_scale=12 | same
bf16.enabled true | compute=f32 | compute=bf16 | same
  --precision f32 | same
  --precision f16 | compute=f16
  --bf16 | compute=bf16 | . | . | bf16.enabled (--precision)
bf16.bf16_optimizer_states true | status 6: both true or both false | compute=bf16 \
    preset=fsdp-memory load=bf16 optimizer=bf16 grad_accum=bf16 | status 6: both true or both false
  with {"bf16": {"bf16_master_weights_and_grads": true}}
  --precision bf16 | preset= load=f32 optimizer=f32 | . | . | bf16.enabled (--precision)
  --grad-accum-dtype f32 | preset=fsdp-memory grad_accum=f32 | . | . | -
bf16.bf16_master_weights_and_grads true | status 6: both true or both false | compute=bf16 \
    preset=fsdp-memory load=bf16 optimizer=bf16 grad_accum=bf16 | status 6: both true or both false
  with {"bf16": {"bf16_optimizer_states": true}}
zerograd.stochastic_rounding true | preset=fsdp-memory stochastic_rounding=false | \
    stochastic_rounding=true | refused
  with {"bf16": {"enabled": 1, "bf16_optimizer_states": 1, "bf16_master_weights_and_grads": 1}}
)";

const char* const learning_keys = R"(
optimizer.type AdamW | status 2: a type is missing | decoupled=true | \
    status 2: expected one of Adam, AdamW
  with {"optimizer": {"params": {"adam_w_mode": false}}}
optimizer.type adam | status 2: a type is missing | decoupled=false | \
    status 2: expected one of Adam, AdamW
  with {"optimizer": {"params": {"adam_w_mode": false}}}
optimizer.type Lion | status 2: a type is missing | rule=lion beta2=0.99 rate=0.25 | \
    status 2: expected one of Adam, AdamW, Lion, Muon, SGD
  with {"optimizer": {"params": {"lr": 0.25}}}
  --optimizer sgd | rule=sgd decoupled=false rate=0.0005 | . | . | optimizer (--optimizer)
optimizer.type SGD | status 2: a type is missing | rule=sgd decoupled=false rate=0.25 | \
    status 2: expected one of Adam, AdamW, Lion, Muon, SGD
  with {"optimizer": {"params": {"lr": 0.25}}}
optimizer.type Muon | status 2: a type is missing | rule=muon decoupled=true rate=0.25 \
    muon_rate=original | status 2: expected one of Adam, AdamW, Lion, Muon, SGD
  with {"optimizer": {"params": {"lr": 0.25}}}
  --muon-rate match_rms_adamw | muon_rate=match_rms_adamw | . | . | -
  --muon-nesterov=false | muon_nesterov=false | . | . | -
optimizer.type Adafactor | status 2: a type is missing | status 6: try --optimizer adafactor, without | \
    status 2: expected one of Adam, AdamW
optimizer.type Lamb | status 2: a type is missing | status 6: 'Lamb': this version lacks it | \
    status 2: expected one of Adam, AdamW
adam.lr 0.25 | rate=0.001 | rate=0.25 | rate=0.0005
  --lr 0.125 | rate=0.125
adam.betas [0.5, 0.75] | beta1=0.9 beta2=0.999 | beta1=0.5 beta2=0.75 | beta1=0.9 beta2=0.95
  --betas 0.25,0.375 | beta1=0.25 beta2=0.375
  --adam-beta1 0.25 | beta1=0.25 beta2=0.75 | beta1=0.25 | beta1=0.25 beta2=0.95
  --adam-beta2 0.25 | beta1=0.5 beta2=0.25 | beta2=0.25 | beta2=0.25
adam.eps 0.125 | epsilon=1e-08 | epsilon=0.125 | epsilon=1e-08
  --adam-eps 0.5 | epsilon=0.5
adam.weight_decay 0.25 | weight_decay=0 | weight_decay=0.25 | weight_decay=0.1
  --weight-decay 0.5 | weight_decay=0.5
adam.adam_w_mode false | decoupled=true | decoupled=false | refused
lion.lr 0.25 | rate=0.001 | rate=0.25 | rate=0.0005
  --lr 0.125 | rate=0.125
lion.betas [0.5, 0.75] | rule=lion beta1=0.9 beta2=0.99 | beta1=0.5 beta2=0.75 | beta1=0.9 beta2=0.95
  --betas 0.25,0.375 | beta1=0.25 beta2=0.375
lion.weight_decay 0.25 | weight_decay=0 | weight_decay=0.25 | weight_decay=0.1
  --weight-decay 0.5 | weight_decay=0.5
muon.lr 0.25 | rate=0.001 muon_adam_rate=1 | rate=0.25 | rate=0.0005
  --lr 0.125 | rate=0.125
muon.muon_lr 0.25 | rate=0.001 muon_adam_rate=1 | rate=0.25 muon_adam_rate=0.004 | refused
  --lr 0.125 | rate=0.125 muon_adam_rate=0.004 | rate=0.125
muon.adam_lr 0.25 | muon_adam_rate=1 | muon_adam_rate=250 | refused
  --muon-adam-rate 2 | muon_adam_rate=2
muon.momentum 0.25 | rule=muon muon_momentum=0.95 | muon_momentum=0.25 | refused
  --muon-momentum 0.5 | muon_momentum=0.5
muon.betas [0.5, 0.75] | beta1=0.9 beta2=0.999 | beta1=0.5 beta2=0.75 | beta1=0.9 beta2=0.95
  --betas 0.25,0.375 | beta1=0.25 beta2=0.375
muon.eps 0.125 | epsilon=1e-08 | epsilon=0.125 | epsilon=1e-08
  --adam-eps 0.5 | epsilon=0.5
muon.weight_decay 0.25 | weight_decay=0 | weight_decay=0.25 | weight_decay=0.1
  --weight-decay 0.5 | weight_decay=0.5
sgd.lr 0.25 | rate=0.001 | rate=0.25 | rate=0.0005
  --lr 0.125 | rate=0.125
sgd.momentum 0.25 | rule=sgd momentum=0 | momentum=0.25 | refused
  --momentum 0.5 | momentum=0.5
sgd.dampening 0.25 | dampening=0 | dampening=0.25 | refused
sgd.nesterov true | nesterov=false | nesterov=true | refused
  --nesterov=false | nesterov=false
sgd.weight_decay 0.25 | weight_decay=0 | weight_decay=0.25 | weight_decay=0.1
  --weight-decay 0.5 | weight_decay=0.5

scheduler.type LRRangeTest | status 2: a type is missing | \
    schedule=LRRangeTest rate=0.001 warmup_steps=0 | status 2: expected one of WarmupLR
  --schedule cosine | schedule=cosine rate=0.0005 | . | . | scheduler (--schedule)
  --lr-decay-style constant | schedule=AnnealingLR rate=0.0005 | . | . | \
    scheduler (--lr-decay-style)
WarmupLR.warmup_min_lr 0.25 | warmup_min_rate=0 | warmup_min_rate=0.25 | warmup_min_rate=0
WarmupLR.warmup_max_lr 0.25 | schedule=WarmupLR rate=0.0005 | rate=0.25 | rate=0.0005
  --lr 0.125 | rate=0.125
  --compat 0.16 | rate=0.25 clip_norm=0 | rate=0.001 clip_norm=0 | clip_norm=0 | -
WarmupLR.warmup_max_lr null | rate=0.125 | same | same
  with {"optimizer": {"type": "Adam", "params": {"lr": 0.125}}}
WarmupLR.warmup_num_steps 7 | warmup_steps=1000 | warmup_steps=7 | warmup_steps=2
  --warmup-steps 9 | warmup_steps=9
WarmupLR.warmup_num_steps 1 | warmup_steps=1000 | warmup_steps=2 | warmup_steps=2
WarmupLR.warmup_type linear | warmup_type=log | warmup_type=linear | refused
WarmupDecayLR.warmup_min_lr 0.25 | warmup_min_rate=0 | warmup_min_rate=0.25 | warmup_min_rate=0
WarmupDecayLR.warmup_max_lr 0.25 | schedule=WarmupDecayLR rate=0.001 | rate=0.25 | rate=0.0005
  --lr 0.125 | rate=0.125
WarmupDecayLR.warmup_num_steps 7 | warmup_steps=1000 | warmup_steps=7 | warmup_steps=2
  --warmup-steps 9 | warmup_steps=9
WarmupDecayLR.total_num_steps 77 | status 2: needs total_num_steps | schedule_steps=77 | \
    schedule_steps=4
WarmupDecayLR.warmup_type linear | warmup_type=log | warmup_type=linear | refused
WarmupCosineLR.warmup_min_ratio 0.25 | schedule=WarmupCosineLR warmup_min_ratio=0 | \
    warmup_min_ratio=0.25 | refused
WarmupCosineLR.cos_min_ratio 0.25 | cosine_min_ratio=0.0001 | cosine_min_ratio=0.25 | refused
  --lr 0.125 | cosine_min_ratio=0.25 rate=0.125 | rate=0.125 | . | -
WarmupCosineLR.warmup_num_steps 7 | warmup_steps=1000 | warmup_steps=7 | warmup_steps=2
  --warmup-steps 9 | warmup_steps=9
WarmupCosineLR.total_num_steps 77 | status 2: needs total_num_steps | schedule_steps=77 | \
    schedule_steps=4
WarmupCosineLR.warmup_type linear | warmup_type=log | warmup_type=linear | refused

LRRangeTest.lr_range_test_min_lr 0.25 | schedule=LRRangeTest rate=0.001 | rate=0.25 | refused
  --lr 0.125 | rate=0.125
  --warmup-steps 9 | status 2: ConfigError: --warmup-steps: expected a --schedule that warms up
LRRangeTest.lr_range_test_step_size 7 | range_test_step_size=2000 | range_test_step_size=7 | refused
LRRangeTest.lr_range_test_step_rate 0.25 | range_test_step_rate=1 | range_test_step_rate=0.25 | \
    refused
LRRangeTest.lr_range_test_staircase true | range_test_staircase=false | range_test_staircase=true | \
    refused
OneCycle.cycle_min_lr 0.25 | status 2: needs cycle_min_lr | schedule=OneCycle cycle_min_rate=0.25 | \
    refused
  --schedule WarmupLR | schedule=WarmupLR cycle_min_rate=0 | . | . | scheduler (--schedule)
  --warmup-steps 9 | status 2: ConfigError: --warmup-steps: expected a --schedule that warms up
OneCycle.cycle_max_lr 0.25 | status 2: needs cycle_max_lr | rate=0.25 | refused
  --lr 0.125 | rate=0.125
OneCycle.decay_lr_rate 0.25 | cycle_decay_rate=0 | cycle_decay_rate=0.25 | refused
OneCycle.cycle_first_step_size 7 | cycle_first_steps=2000 cycle_second_steps=2000 | \
    cycle_first_steps=7 cycle_second_steps=7 | refused
OneCycle.cycle_second_step_size 7 | cycle_first_steps=2000 | cycle_second_steps=7 | refused
OneCycle.cycle_second_step_size 7 | cycle_first_steps=5 cycle_second_steps=5 | \
    cycle_second_steps=7 | refused
  with {"scheduler": {"params": {"cycle_first_step_size": 5}}}
OneCycle.decay_step_size 7 | cycle_decay_steps=0 | cycle_decay_steps=7 | refused
OneCycle.cycle_momentum false | cycle_momentum=true | cycle_momentum=false | refused
OneCycle.cycle_momentum true | cycle_momentum=true | same | refused
  --betas 0.5,0.75 | beta1=0.5 beta2=0.75 cycle_momentum=false
  --adam-beta1 0.5 | beta1=0.5 cycle_momentum=false
  --adam-beta2 0.5 | beta2=0.5 cycle_momentum=false
OneCycle.cycle_min_mom 0.25 | cycle_min_momentum=0.8 | cycle_min_momentum=0.25 | refused
OneCycle.cycle_max_mom 0.25 | cycle_max_momentum=0.9 | cycle_max_momentum=0.25 | refused
OneCycle.decay_mom_rate 0.25 | cycle_momentum_decay=0 | cycle_momentum_decay=0.25 | refused
)";

const char* const zero_keys = R"(
zero_optimization.stage 2 | stage=0 | stage=2 | same
  --zero-stage 1 | stage=1
  --strategy deepspeed_stage_1 | stage=1
  --strategy deepspeed_stage_1_offload | stage=1 offload_optimizer=host offload_gradient=host
zero_optimization.cpu_offload true | offload_optimizer=device offload_gradient=device | \
    offload_optimizer=host offload_gradient=host | same
  --offload-optimizer none | same
  --cpu-offload | offload_optimizer=host offload_gradient=host
zero_optimization.cpu_offload false | offload_optimizer=device | same | same
  --cpu-offload | offload_optimizer=host offload_gradient=host
  --offload-optimizer host | offload_optimizer=host
  --strategy deepspeed_stage_2_offload | stage=2 offload_optimizer=host offload_gradient=host
zero_optimization.cpu_offload_param true | offload_parameter=device | offload_parameter=host | same
  with {"zero_optimization": {"stage": 3}}
  --offload-param none | same
  --zero-stage 2 | stage=2 overlap_comm=false | . | . | -
zero_optimization.cpu_offload_param false | offload_parameter=device | same | same
  with {"zero_optimization": {"stage": 3}}
  --cpu-offload | offload_optimizer=host offload_gradient=host offload_parameter=host
  --offload-param host | offload_parameter=host

offload_optimizer.device cpu | offload_optimizer=device | \
    offload_optimizer=host offload_gradient=host | same
  --offload-optimizer none | same
  --offload-gradients none | offload_optimizer=host | same | same | -
offload_optimizer.device none | offload_optimizer=device | same | same
  --cpu-offload | offload_optimizer=host offload_gradient=host offload_parameter=host
  --offload-optimizer host | offload_optimizer=host
offload_optimizer.device nvme | offload_optimizer=device | offload_optimizer=file \
    offload_gradient=host drive=/tmp requests=8_requests_of_1048576_bytes | same
  with {"zero_optimization": {"offload_optimizer": {"nvme_path": "/tmp"}}}
  --offload-optimizer host | offload_optimizer=host
  --cpu-offload | offload_optimizer=host offload_gradient=host offload_parameter=host
offload_param.device cpu | offload_parameter=device | offload_parameter=host | same
  --offload-param none | same
  --zero-stage 2 | stage=2 overlap_comm=false | . | . | -
offload_param.device cpu | offload_parameter=device | same | same
  with {"zero_optimization": {"stage": 2}}
  --zero-stage 3 | stage=3 overlap_comm=true offload_parameter=host | stage=3 overlap_comm=true | . | -
offload_param.device none | offload_parameter=device | same | same
  --cpu-offload | offload_optimizer=host offload_gradient=host offload_parameter=host
  --strategy deepspeed_stage_3_offload | \
    offload_optimizer=host offload_gradient=host offload_parameter=host
  --offload-param host | offload_parameter=host
offload_optimizer.nvme_path /tmp | status 2: nvme without a path | \
    offload_optimizer=file drive=/tmp | status 2: nvme without a path
  with {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}
  --nvme-path /tmp/. | drive=/tmp/. | drive=/tmp/. | drive=/tmp/.
offload_param.nvme_path /tmp | status 2: nvme without a path | \
    offload_parameter=file drive=/tmp | status 2: nvme without a path
  with {"zero_optimization": {"stage3_param_persistence_threshold": 0, \
                              "offload_param": {"device": "nvme"}}}
  --nvme-path /tmp/. | drive=/tmp/. | drive=/tmp/. | drive=/tmp/.
  --offload-param none | offload_parameter=device | offload_parameter=device | \
    offload_parameter=device | -
offload_param.nvme_path /tmp | status 2: nvme without a path | \
    offload_parameter=file offload_optimizer=host drive=/tmp | status 2: nvme without a path
  with {"zero_optimization": {"stage3_param_persistence_threshold": 0, \
                              "offload_param": {"device": "nvme"}, \
                              "offload_optimizer": {"device": "cpu", "nvme_path": "/nowhere"}}}
offload_optimizer.nvme_path /tmp | status 2: nvme without a path | \
    offload_parameter=host offload_optimizer=file drive=/tmp | status 2: nvme without a path
  with {"zero_optimization": {"offload_param": {"device": "cpu", "nvme_path": "/nowhere"}, \
                              "offload_optimizer": {"device": "nvme"}}}
offload_optimizer.nvme_path /tmp/. | status 2: nvme without a path | \
    status 6: expected the path of offload_param, | status 2: nvme without a path
  with {"zero_optimization": {"stage3_param_persistence_threshold": 0, \
                              "offload_param": {"device": "nvme", "nvme_path": "/tmp"}, \
                              "offload_optimizer": {"device": "nvme"}}}
  --nvme-path /tmp | drive=/tmp | drive=/tmp | drive=/tmp
  --offload-optimizer host | drive=/tmp | drive=/tmp | drive=/tmp | -
aio.block_size 8192 | requests=8_requests_of_1048576_bytes | requests=8_requests_of_8192_bytes | \
    refused
  with {"zero_optimization": {"stage": 1, \
                              "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}}}
aio.queue_depth 3 | requests=8_requests_of_1048576_bytes | requests=3_requests_of_1048576_bytes | \
    refused
  with {"zero_optimization": {"stage": 1, \
                              "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}}}
activation_checkpointing.cpu_checkpointing true | offload_activation=device | \
    offload_activation=host | refused
  given --activation-checkpoint
  --offload-activations none | same | same | . | -
zerograd.offload_gradients cpu | offload_gradient=device | offload_gradient=host | refused
  --offload-gradients none | same
zerograd.offload_gradients none | offload_gradient=device | same | refused
  --cpu-offload | offload_optimizer=host offload_gradient=host
  --offload-gradients host | offload_gradient=host
zerograd.offload_gradients none | offload_gradient=host | offload_gradient=device | refused
  with {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
zerograd.offload_activations cpu | offload_activation=device | offload_activation=host | refused
  --offload-activations none | same
)";

// "auto" of the width 16 is 256, 230 and 160 elements.
const char* const memory_keys = R"(
zero_optimization.reduce_bucket_size 128 | reduce_bucket_size=500000000 | reduce_bucket_size=128 | \
    reduce_bucket_size=256
  --reduce-bucket-size 512 | reduce_bucket_size=512
zero_optimization.allgather_bucket_size 128 | allgather_bucket_size=500000000 | \
    allgather_bucket_size=128 | same
zero_optimization.overlap_comm false | overlap_comm=true | overlap_comm=false | same
  with {"zero_optimization": {"stage": 3}}
  --overlap-comm off | overlap_comm=false
  --overlap-comm on | same
zero_optimization.overlap_comm true | overlap_comm=false | overlap_comm=true | same
  with {"zero_optimization": {"stage": 2}}
  --overlap-comm off | same
  --overlap-comm on | overlap_comm=true
zero_optimization.overlap_comm null | overlap_comm=true | same | same
  with {"zero_optimization": {"stage": 1}}
  given --zero-stage 3
  --overlap-comm off | overlap_comm=false | . | . | -
zero_optimization.stage3_prefetch_bucket_size 255 | prefetch_bucket_size=50000000 | \
    prefetch_bucket_size=255 | prefetch_bucket_size=230
  with {"zero_optimization": {"stage": 3}}
  --prefetch-bucket-size 256 | prefetch_bucket_size=256
  --prefetch-bucket-size 0 | prefetch_bucket_size=0
zero_optimization.stage3_param_persistence_threshold 0 | param_persistence_threshold=100000 | \
    param_persistence_threshold=0 | param_persistence_threshold=160
  with {"zero_optimization": {"stage": 3}}
  --param-persistence-threshold 200 | param_persistence_threshold=200
zero_optimization.sub_group_size 64 | sub_group_size=8388608 | sub_group_size=64 | same
  with {"zero_optimization": {"stage": 1, \
                              "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}}}
offload_optimizer.ratio 0.5 | optimizer_ratio=1 | optimizer_ratio=0.5 | same
  with {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
offload_param.max_in_cpu 1000 | parameters_on_host=0 | parameters_on_host=1000 | same
  with {"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/tmp"}}}
offload_param.buffer_size 100 | parameter_buffer=500000000 | parameter_buffer=500 | same
  with {"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/tmp"}}}
offload_param.buffer_count 1 | parameter_buffer=500000000 | parameter_buffer=100000000 | same
  with {"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/tmp"}}}
writer.decoupled true | async_save=false | async_save=true | refused
  given --save-interval 1 --save /tmp/unused
  --async-save | async_save=true
  --async-save=false | same
zerograd.activation_checkpoint true | activation_checkpoint=false | activation_checkpoint=true | refused
  --activation-checkpoint | activation_checkpoint=true
  --activation-checkpoint=false | same
)";

// Those of DeepSpeed in accelerate's words go to DeepSpeed's keys.
const char* const accelerate_keys = R"(
accelerate.num_processes 2 | ranks=1 micro_batch=64 | ranks=2 | refused
  --ranks 4 | ranks=4
accelerate.mixed_precision bf16 | compute=f32 | compute=bf16 | refused
  --precision f16 | compute=f16
accelerate.mixed_precision fp16 | compute=f32 | compute=f16 | refused
  --precision f32 | same
accelerate.mixed_precision bf16 | compute=f32 stage=0 | compute=bf16 | refused
  with {"distributed_type": "MULTI_CPU"}
accelerate.mixed_precision fp16 | compute=f32 | compute=f16 initial_scale_power=5 | refused
  with {"deepspeed_config": {"deepspeed_config_file": \
        "{train_batch_size: 4, fp16: {enabled: 'auto', initial_scale_power: 5}}"}}
  --precision f16 | compute=f16 initial_scale_power=5
  --precision bf16 | compute=bf16
accelerate.mixed_precision fp16 | compute=f32 | same | refused
  with {"deepspeed_config": {"deepspeed_config_file": \
        "{train_batch_size: 4, fp16: {enabled: false, initial_scale_power: 5}}"}}
accelerate.mixed_precision bf16 | compute=f32 | compute=bf16 preset=fsdp-memory load=bf16 \
    optimizer=bf16 grad_accum=bf16 | refused
  with {"deepspeed_config": {"deepspeed_config_file": \
        "{train_batch_size: 4, bf16: {enabled: 'auto', bf16_optimizer_states: true, \
          bf16_master_weights_and_grads: true}}"}}
accelerate.mixed_precision bf16 | compute=f32 | status 6: both true or both false | refused
  with {"deepspeed_config": {"deepspeed_config_file": \
        "{train_batch_size: 4, bf16: {enabled: 'auto', bf16_optimizer_states: true}}"}}
accelerate.mixed_precision bf16 | compute=f16 stage=0 | \
    status 2: mixed_precision: bf16 here and fp16 in | refused
  with {"deepspeed_config": {"deepspeed_config_file": \
        "{train_batch_size: 4, fp16: {enabled: true}}"}}
  --precision f32 | compute=f32
accelerate_deepspeed.zero_stage 3 | stage=2 | stage=3 overlap_comm=true | refused
  --zero-stage 1 | stage=1 | . | . | zero_optimization.stage (--zero-stage)
accelerate_deepspeed.gradient_accumulation_steps 3 | accumulation=1 | accumulation=3 | same
  --grad-accum 2 | accumulation=2 | . | . | gradient_accumulation_steps (--grad-accum)
  --batch-size 8 | accumulation=3 micro_batch=8 | micro_batch=8 | . | -
accelerate_deepspeed.gradient_clipping 0.25 | clip_norm=1 | clip_norm=0.25 | same
  --clip 0.5 | clip_norm=0.5 | . | . | gradient_clipping (--clip)
accelerate_deepspeed.gradient_clipping none | clip_norm=1 | same | same
accelerate_deepspeed.offload_optimizer_device cpu | offload_optimizer=device | \
    offload_optimizer=host offload_gradient=host | refused
  --offload-optimizer none | same | . | . | \
    zero_optimization.offload_optimizer.device (--offload-optimizer)
accelerate_deepspeed.offload_optimizer_nvme_path /tmp | status 2: nvme without a path | \
    offload_optimizer=file drive=/tmp | status 2: nvme without a path
  with {"deepspeed_config": {"offload_optimizer_device": "nvme"}}
accelerate_deepspeed.offload_param_device cpu | offload_parameter=device | \
    offload_parameter=host | refused
  with {"deepspeed_config": {"zero_stage": 3}}
accelerate_deepspeed.offload_param_nvme_path /tmp | status 2: nvme without a path | \
    offload_parameter=file | status 2: nvme without a path
  with {"deepspeed_config": {"zero_stage": 3, "offload_param_device": "nvme"}}
)";

}  // namespace

TEST_CASE("config: a run uses general and precision keys, or the flags that override them") {
  check_matrix(general_keys);
}

TEST_CASE("config: a run uses optimizer and scheduler keys, or the flags that override them") {
  check_matrix(learning_keys);
}

TEST_CASE("config: a run uses ZeRO and offload keys, or the flags that override them") {
  check_matrix(zero_keys);
}

TEST_CASE("config: a run uses memory and checkpoint keys, or the flags that override them") {
  check_matrix(memory_keys);
}

TEST_CASE("config: a run uses accelerate's keys, or the flags that override them") {
  check_matrix(accelerate_keys);
}

// By DeepSpeed's seven cases, where "auto" is 64 samples a micro-batch if nothing else decides.
TEST_CASE("config: the batch sizes follow from the keys and flags in every combination") {
  constexpr const char* keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                  "gradient_accumulation_steps"};
  constexpr const char* flags[] = {" --train-batch-size", " --batch-size", " --grad-accum"};
  constexpr int numbers[] = {24, 4, 3};  // on 2 ranks
  enum State { absent, automatic, value, flag, flag_over_automatic, flag_over_value, states };
  for (int combination = 0; combination < states * states * states; ++combination) {
    const int of[] = {combination % states, combination / states % states,
                      combination / states / states};
    json config = json::object();
    std::string line = "--ranks 2";
    bool known[3];
    for (int i = 0; i < 3; ++i) {
      known[i] = of[i] >= value;
      if (of[i] == automatic || of[i] == flag_over_automatic) config[keys[i]] = "auto";
      if (of[i] == value) config[keys[i]] = numbers[i];
      if (of[i] == flag_over_value) config[keys[i]] = 5 * numbers[i];  // overridden
      if (of[i] >= flag) line += flags[i] + std::string(" ") + std::to_string(numbers[i]);
    }
    const auto [train, micro, accumulation] = known;
    const bool fills = of[0] == automatic || of[1] == automatic;
    std::string expected = "micro_batch=4 accumulation=3";
    if (!train && !micro)
      expected = !fills         ? "status 2: needs to be provided"
                 : accumulation ? "micro_batch=64 accumulation=3"
                                : "micro_batch=64 accumulation=1";
    else if (!accumulation && !(train && micro))
      expected = train ? "micro_batch=12 accumulation=1" : "micro_batch=4 accumulation=1";
    INFO(config.dump(), ", line ", line);
    CHECK(surprise(expected, configured(config, line), {}) == "");
  }
}

TEST_CASE("config: every honoured key has a row in a table of this test") {
  std::set<const Row*> known;
  for (const char* table : {general_keys, learning_keys, zero_keys, memory_keys, accelerate_keys})
    for (const Key& key : parsed(table))
      known.insert(zero::deepspeed::find_row(key.section, key.key));
  for (const char* key :
       {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})
    known.insert(zero::deepspeed::find_row("", key));
  // A run that tunes: tests/tools/tune_test.cpp
  known.insert(zero::deepspeed::find_row("autotuning", "enabled"));
  for (const Row& row : zero::deepspeed::rows())
    if (row.effect == zero::deepspeed::Effect::honoured)
      CHECK_MESSAGE(known.count(&row) == 1, zero::deepspeed::path_of(row), " has no expectation");
}

}  // namespace zg::testing
