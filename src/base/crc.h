/* CRC-32 as in zip and PNG (polynomial 0xEDB88320, reflected; RFC 1952): what checkpoints keep of each slice. Pure. */
#ifndef DT_BASE_CRC_H
#define DT_BASE_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Of what `crc` covers followed by n bytes; begin with 0. */
uint32_t dt_crc32(uint32_t crc, const void *p, size_t n);

#endif
