// State of the current work-item. The driver shares it with the library that is linked into each
// module. C, C++ and OpenCL C.
#pragma once

struct zg_item {
  unsigned local_id[3], group_id[3], groups[3], local_size[3];
  unsigned lane, lanes, sub_group, sub_groups;
  unsigned broken_products;  // products of tiles leave the sum as it is
};
