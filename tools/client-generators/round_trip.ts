// Type-checked against the client that @hey-api/openapi-ts has generated: a pool is created and read with its types.
import { createPool, getPool, type ErrorOut, type LeadPage, type Pool } from './generated';

export async function roundTrip(baseUrl: string, key: string): Promise<Pool | ErrorOut> {
  const options = { baseUrl, auth: key };
  const created = await createPool({ ...options, body: { id: 'generated', name: 'Main numbers' } });
  if (created.error) return created.error;
  const read = await getPool({ ...options, path: { pool_id: created.data.id } });
  return read.data ?? read.error;
}

export const phones = (page: LeadPage): string[] => page.items.map((lead) => lead.phone);
